"""Waiting for a prefix that another request computes: only for one that gets on."""

from engine.core.guardrails import Restrictions
from tests.builders.sequences import scheduler, sequence, step, submit


def alike(id: str, **params):
    each = sequence(id, num_prompt_tokens=20, **params)
    each.cache_namespace = b"tenant"
    return each


def running(engine) -> set[str]:
    return {each.id for each in engine.running()}


def test_a_request_waits_a_moment_for_the_prefix_that_another_computes() -> None:
    engine = scheduler()
    submit(engine, alike("first"))
    submit(engine, alike("second", arrived_at=1.0))
    step(engine)
    assert running(engine) == {"first"}


def test_a_person_does_not_wait_for_a_prompt_that_paused_offline_work_has_begun() -> None:
    engine = scheduler()
    submit(engine, alike("offline", offline=True))
    step(engine)
    engine.restrict(Restrictions(level=1))
    submit(engine, alike("person", arrived_at=1.0))
    step(engine)
    assert "person" in running(engine)


def test_a_person_does_not_wait_for_a_prompt_whose_request_gave_its_seat_up() -> None:
    engine = scheduler(max_num_seqs=1)
    submit(engine, alike("offline", offline=True))
    step(engine)
    submit(engine, alike("person", arrived_at=1.0))
    step(engine)
    assert running(engine) == {"person"}
