"""A batch's rate, and the moment when it will be done."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.batches.progress import done_at, items_per_second

NOW = datetime(2026, 11, 1, tzinfo=UTC)
WINDOW_ENDS = NOW + timedelta(hours=24)


def test_the_first_rate_is_what_was_gained_in_its_time() -> None:
    assert items_per_second(None, num_gained=50, elapsed_seconds=5.0) == 10.0


def test_a_rate_follows_a_change_within_a_minute_or_two() -> None:
    rate = 100.0
    for _ in range(24):
        rate = items_per_second(rate, num_gained=50, elapsed_seconds=5.0)
    assert rate == pytest.approx(10.0, rel=0.2)


def test_one_sample_does_not_turn_a_rate_over() -> None:
    assert items_per_second(100.0, num_gained=0, elapsed_seconds=5.0) > 80.0


def test_how_often_it_is_sampled_does_not_change_what_is_forgotten() -> None:
    once = items_per_second(100.0, num_gained=0, elapsed_seconds=10.0)
    twice = items_per_second(
        items_per_second(100.0, num_gained=0, elapsed_seconds=5.0), num_gained=0, elapsed_seconds=5.0
    )
    assert once == pytest.approx(twice)


def test_a_batch_is_done_when_what_is_left_has_run_at_its_rate() -> None:
    assert done_at(NOW, num_left=600, rate=10.0, expires_at=WINDOW_ENDS) == NOW + timedelta(minutes=1)


def test_a_batch_is_never_done_after_its_window() -> None:
    assert done_at(NOW, num_left=10**9, rate=0.01, expires_at=WINDOW_ENDS) == WINDOW_ENDS


@pytest.mark.parametrize("rate", [None, 0.0, 1e-9])
def test_nobody_knows_when_a_batch_is_done_that_stands_still(rate: float | None) -> None:
    assert done_at(NOW, num_left=1, rate=rate, expires_at=WINDOW_ENDS) is None


def test_a_batch_of_which_nothing_is_left_is_done() -> None:
    assert done_at(NOW, num_left=0, rate=None, expires_at=WINDOW_ENDS) == NOW
