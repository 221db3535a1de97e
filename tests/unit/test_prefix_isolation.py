"""What the scheduler does for one tenant's prompt tells nothing of what another tenant has asked."""

import pytest

from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from tests.builders.sequences import run_until_idle, scheduler, sequence, step, submit


def asking(id: str, tenant: str, *, arrived_at: float = 0.0) -> Sequence:
    """Everybody asks the same."""
    each = sequence(id, tenant=tenant, num_prompt_tokens=40, max_tokens=1, arrived_at=arrived_at)
    each.cache_namespace = tenant.encode()
    return each


def num_steps_to_first_token(engine: Scheduler, asked: Sequence) -> int:
    submit(engine, asked)
    for count in range(1, 100):
        step(engine)
        if asked.first_token_at is not None:
            return count
    raise AssertionError("no token")


@pytest.fixture
def cold() -> int:
    return num_steps_to_first_token(scheduler(), asking("cold", "b"))


def test_a_first_token_takes_as_long_whether_or_not_another_tenant_has_asked_the_same(cold: int) -> None:
    """CVE-2025-46570: the time to the first token revealed whose prompts were cached."""
    engine = scheduler()
    submit(engine, asking("a", "a"))
    run_until_idle(engine)
    curious = asking("curious", "b", arrived_at=1.0)
    assert num_steps_to_first_token(engine, curious) == cold
    assert curious.num_cached_tokens == 0


def test_the_same_tenant_has_its_first_token_sooner(cold: int) -> None:
    engine = scheduler()
    submit(engine, asking("b", "b"))
    run_until_idle(engine)
    again = asking("again", "b", arrived_at=1.0)
    assert num_steps_to_first_token(engine, again) < cold
    assert again.num_cached_tokens == 36


def test_nobody_is_made_to_wait_for_what_another_tenant_computes() -> None:
    """Waiting for equal text that is being computed would tell that somebody asks the same right now."""
    engine = scheduler()
    submit(engine, asking("a", "a"))
    step(engine)
    curious = asking("curious", "b", arrived_at=1.0)
    submit(engine, curious)
    step(engine)
    assert curious.scheduled_at is not None
