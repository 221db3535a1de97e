"""Items whose worker died: run again, apart from each other, and not for ever."""

from gateway.batches.attempts import LONGEST_PAUSE_SECONDS, MOST_ATTEMPTS, is_hopeless, pause_seconds


def test_an_item_whose_worker_died_once_is_run_again_at_once() -> None:
    assert pause_seconds(1, chance=0.99) == 0.0


def test_items_that_died_together_again_wait_differently_long() -> None:
    assert pause_seconds(4, chance=0.1) < pause_seconds(4, chance=0.9)


def test_no_item_waits_longer_than_a_minute() -> None:
    assert pause_seconds(1_000, chance=1.0) == LONGEST_PAUSE_SECONDS


def test_an_item_is_given_up_after_its_last_attempt() -> None:
    assert not is_hopeless(MOST_ATTEMPTS - 1)
    assert is_hopeless(MOST_ATTEMPTS)
