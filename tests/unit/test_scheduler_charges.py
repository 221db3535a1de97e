"""What tenants are charged: each token once, by what it was when it was had."""

import pytest

from engine.core.guardrails import Restrictions
from tests.builders.sequences import compute, scheduler, sequence, step, submit


def test_what_others_computed_while_a_prompt_was_paused_is_charged_as_cached() -> None:
    engine = scheduler(prefill_chunk_size=4)
    paused = sequence("paused", tenant="batch", num_prompt_tokens=20, max_tokens=1, offline=True)
    person = sequence("person", tenant="person", num_prompt_tokens=20, max_tokens=1, arrived_at=1.0)
    for each in (paused, person):
        each.shared_namespace, each.num_shared_tokens = b"agreed", 20
    submit(engine, paused)
    step(engine)
    engine.restrict(Restrictions(level=2))
    submit(engine, person)
    while list(engine.sequences()) != [paused]:
        step(engine)
    engine.restrict(Restrictions(level=0))
    charged: dict[str, float] = {}
    while engine.has_work:
        plan = engine.plan_step(1.0)
        charged.update({load.tenant: load.service for load in engine.tenant_loads()})
        assert plan is not None
        engine.apply(plan, compute(plan), 1.0)
    sampled = 2.1
    assert charged["batch"] == pytest.approx(4 + 0.1 * 12 + 4 + sampled)
