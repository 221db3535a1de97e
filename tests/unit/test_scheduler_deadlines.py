"""Deadlines and patience: nobody is refused for want of time that is there, or kept waiting for nothing."""

from engine.core.outcome import RefusalReason, Refused
from tests.builders.scheduler_world.world import Law
from tests.builders.sequences import run_until_idle, scheduler, sequence, submit

LAW = Law(per_step=0.1, per_prefill_token=0.01, per_decode_row=0.01)


def test_a_prompt_that_is_cached_is_not_refused_for_the_time_that_it_would_take() -> None:
    engine = scheduler()
    LAW.teach(engine)
    first = sequence("first", num_prompt_tokens=40)
    again = sequence("again", num_prompt_tokens=40, deadline=0.5)
    stranger = sequence("stranger", num_prompt_tokens=40, deadline=0.5)
    first.cache_namespace = again.cache_namespace = b"tenant"
    submit(engine, first)
    run_until_idle(engine)
    refusal = submit(engine, stranger)
    assert refusal is not None
    assert refusal.reason is RefusalReason.DEADLINE_INFEASIBLE
    assert submit(engine, again) is None


def test_a_deadline_that_chunks_of_a_prompt_cannot_meet_is_refused_at_once() -> None:
    engine = scheduler(prefill_chunk_size=1)
    LAW.teach(engine)
    refusal = submit(engine, sequence(num_prompt_tokens=20, deadline=1.0))  # twenty steps: 2.2 s
    assert refusal is not None
    assert refusal.reason is RefusalReason.DEADLINE_INFEASIBLE


def test_more_least_tokens_than_the_most_do_not_make_a_deadline_infeasible() -> None:
    engine = scheduler()
    LAW.teach(engine)
    assert submit(engine, sequence(max_tokens=2, min_tokens=50, deadline=1.0)) is None


def test_patience_that_ends_between_two_numbers_is_still_a_waiting_timeout() -> None:
    arrived_at, timeout_ms = 0.2, 500
    assert (arrived_at + timeout_ms / 1000) - arrived_at < timeout_ms / 1000
    engine = scheduler(waiting_timeout_ms=timeout_ms)
    submit(engine, sequence(arrived_at=arrived_at))
    (outcome,) = engine.expire(arrived_at + timeout_ms / 1000)
    assert isinstance(outcome, Refused)
    assert outcome.refusal.reason is RefusalReason.WAITING_TIMEOUT
