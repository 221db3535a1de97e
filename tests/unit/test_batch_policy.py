"""Which failures of a line are its answer, and when another attempt is made of the others."""

import pytest

from gateway.batches.attempts import MOST_ATTEMPTS
from gateway.batches.policy import MOST_FAILURES, Again, Attempt, again
from gateway.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    GatewayError,
    InternalError,
    InvalidRequest,
    LimitReached,
    NotFound,
    ServerOverloaded,
    StoreUnavailable,
)

FINAL = [
    InvalidRequest("no"),
    ContextLengthExceeded("too long", param="messages"),
    NotFound("no such model"),
]
AWAY = [ServerOverloaded("no engine"), StoreUnavailable("no database")]


def limit(retry_after_seconds: float | None) -> LimitReached:
    return LimitReached("used up", limit_type="tokens", code="rate", retry_after_seconds=retry_after_seconds)


def verdict(
    error: GatewayError, *, has_run: bool = False, has_output: bool = False, attempt: int = 1
) -> Again | None:
    how_far = Attempt(number=attempt, was_at_engine=has_run, has_output=has_output)
    return again(error, how_far, chance=0.5)


@pytest.mark.parametrize("error", FINAL)
def test_what_another_attempt_cannot_mend_is_the_answer(error: GatewayError) -> None:
    assert verdict(error) is None
    assert verdict(error, has_run=True) is None


@pytest.mark.parametrize("error", AWAY)
def test_while_nobody_can_run_it_a_line_loses_no_attempt(error: GatewayError) -> None:
    retry = verdict(error, attempt=MOST_ATTEMPTS + 1)
    assert retry is not None
    assert not retry.counts
    assert retry.after_seconds > 0


def test_an_engine_that_is_lost_under_a_line_is_an_attempt_of_many() -> None:
    error = ServerOverloaded("the engine was lost")
    attempts = [verdict(error, has_run=True, attempt=number) for number in range(1, MOST_ATTEMPTS + 1)]
    assert all(retry is not None and retry.counts for retry in attempts[:-1])
    assert attempts[-1] is None


def test_an_engine_that_fails_at_a_line_is_an_attempt_of_few() -> None:
    error = InternalError("the engine could not compute it")
    attempts = [verdict(error, has_run=True, attempt=number) for number in range(1, MOST_FAILURES + 1)]
    assert [retry is not None and retry.counts for retry in attempts] == [True] * (MOST_FAILURES - 1) + [
        False
    ]


def test_a_budget_that_is_used_up_holds_up_its_batch_for_a_bounded_time() -> None:
    tomorrow = verdict(limit(80_000), attempt=MOST_ATTEMPTS + 1)
    assert tomorrow is not None
    assert tomorrow.holds_up_batch
    assert not tomorrow.counts
    assert tomorrow.after_seconds <= 60


def test_a_line_over_a_whole_limit_will_never_run() -> None:
    assert verdict(limit(None)) is None


def test_a_line_that_did_not_get_its_turn_in_time_loses_no_attempt() -> None:
    """After ten minutes of paused offline work every line that was at an engine had failed for good."""
    retry = verdict(DeadlineExceeded("too late"), has_run=True, attempt=MOST_ATTEMPTS)
    assert retry is not None
    assert not retry.counts


def test_an_answer_that_takes_too_long_is_an_attempt_of_few() -> None:
    late = DeadlineExceeded("too late")
    retry = verdict(late, has_run=True, has_output=True)
    assert retry is not None
    assert retry.counts
    assert verdict(late, has_run=True, has_output=True, attempt=MOST_FAILURES) is None
