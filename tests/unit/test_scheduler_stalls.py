"""Whatever waits is admitted or refused: nothing waits for ever beside an engine that could run it."""

import random
from dataclasses import replace

import pytest

from engine.core.guardrails import Restrictions
from engine.core.outcome import Refused
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence, SequenceClass
from engine.core.step import StepPlan
from tests.builders.pressure import expect_short_answers
from tests.builders.sequences import expected_output, run_until_idle, scheduler, sequence, step, submit


def planned(plan: StepPlan | None) -> list[str]:
    return [] if plan is None else [row.sequence_id for row in plan.rows]


def named(each: Sequence, namespace: bytes = b"tenant") -> Sequence:
    """With a namespace its blocks are cached."""
    each.cache_namespace = namespace
    return each


def under_pressure(num_sequences: int = 4, *, tenants: str = "abc") -> tuple[Scheduler, list[Sequence]]:
    """More answers than the cache holds to their ends, all admitted together."""
    engine = scheduler(num_blocks=16, max_num_seqs=num_sequences, kv_cache_utilization_limit=1.0)
    expect_short_answers(engine)
    sequences = [
        sequence(
            f"s{index}",
            tenant=tenants[index % len(tenants)],
            num_prompt_tokens=4,
            max_tokens=40,
            arrived_at=float(index),
        )
        for index in range(num_sequences)
    ]
    for each in sequences:
        submit(engine, each)
    return engine, sequences


# --- what can never run --------------------------------------------------------------------------------


def test_a_request_larger_than_the_whole_cache_is_refused_and_holds_nobody_up() -> None:
    """vllm#39734: within max_model_len but larger than all blocks, it was waited for, and all behind it."""
    engine = scheduler(num_blocks=8, kv_cache_utilization_limit=1.0)
    refusal = submit(engine, sequence("giant", num_prompt_tokens=30, max_tokens=10))
    assert refusal is not None
    assert refusal.reason.value == "kv_never_fits"
    small = sequence("small", arrived_at=1.0)
    submit(engine, small)
    run_until_idle(engine)
    assert small.token_ids[4:] == expected_output(small)


@pytest.mark.parametrize("offline", [False, True])
def test_a_waiting_request_is_refused_when_limits_shrink_below_it(offline: bool) -> None:
    """vllm#39734, at run time: it fitted when it came."""
    engine = scheduler(max_num_seqs=1, offline_kv_utilization_limit=0.9)
    submit(engine, sequence("runs", max_tokens=60))
    step(engine)
    submit(engine, sequence("large", num_prompt_tokens=60, max_tokens=20, offline=offline))
    submit(engine, sequence("small", offline=offline))
    (refused,) = engine.set_limits(replace(engine.limits, kv_cache_utilization_limit=0.25))
    assert isinstance(refused, Refused)
    assert refused.sequence.id == "large"
    assert refused.refusal.reason.value == "kv_never_fits"
    assert {each.id for each in engine.sequences()} == {"runs", "small"}


def test_one_that_ran_already_comes_to_its_end_although_limits_shrink_below_it() -> None:
    """It was promised an answer; alone it may have what the cache has."""
    engine, sequences = under_pressure()
    while not any(each.num_preemptions for each in sequences):
        step(engine)
    started = [each for each in sequences if each.scheduled_at is not None]
    refused = engine.set_limits(replace(engine.limits, kv_cache_utilization_limit=0.2))
    assert not {each.id for each in started} & {outcome.sequence.id for outcome in refused}
    run_until_idle(engine)
    for each in started:
        assert each.token_ids[4:] == expected_output(each)


def test_offline_work_that_ran_already_comes_to_its_end_although_limits_shrink_below_it() -> None:
    engine = scheduler(max_num_seqs=1, offline_kv_utilization_limit=0.9)
    offline = sequence("offline", num_prompt_tokens=40, max_tokens=10, offline=True)
    submit(engine, offline)
    step(engine)
    submit(engine, sequence("person", max_tokens=4, arrived_at=1.0))
    step(engine)
    engine.set_limits(replace(engine.limits, kv_cache_utilization_limit=0.1))
    run_until_idle(engine)
    assert offline.token_ids[40:] == expected_output(offline)


# --- what could run ------------------------------------------------------------------------------------


def test_parked_requests_hold_no_seats() -> None:
    """vllm#53130: deferred and running requests together reached max_num_seqs; nobody was admitted again."""
    engine = scheduler(max_num_seqs=2)
    for index in range(2):
        submit(engine, sequence(f"offline{index}", offline=True, max_tokens=60))
    step(engine)
    people = [sequence(f"person{index}", max_tokens=10, arrived_at=1.0 + index) for index in range(6)]
    for person in people[:2]:
        submit(engine, person)
    step(engine)
    assert engine.num_waiting(SequenceClass.OFFLINE) == 2
    for person in people[2:]:
        submit(engine, person)
    num_steps = 0
    while engine.num_running(SequenceClass.INTERACTIVE) + engine.num_waiting(SequenceClass.INTERACTIVE):
        step(engine)
        num_steps += 1
    assert num_steps <= 3 * 10  # two at a time, all the time
    run_until_idle(engine)


def test_chunks_of_long_prompts_do_not_eat_the_step_that_a_short_one_needs() -> None:
    """vllm#53130: chunked prefills took the whole budget and the waiting were never looked at."""
    engine = scheduler(max_num_seqs=8, num_blocks=256)
    for index in range(4):
        submit(engine, sequence(f"long{index}", tenant=f"t{index}", num_prompt_tokens=100, max_tokens=1))
    for _ in range(4):
        step(engine)
    submit(engine, sequence("short", tenant="new", num_prompt_tokens=4, arrived_at=1.0))
    plan, _ = step(engine)
    assert "short" in planned(plan)


def test_a_preempted_request_is_not_taken_up_again_in_the_same_step() -> None:
    """mistral.rs#2043: it went to the front of the queue that was being read; the loop never ended."""
    engine, sequences = under_pressure()
    num_preempted = 0
    for _ in range(200):
        before = {each.id: each.num_preemptions for each in sequences}
        plan, _ = step(engine)
        just_now = {each.id for each in sequences if each.num_preemptions > before[each.id]}
        assert not just_now & set(planned(plan))
        num_preempted += len(just_now)
    assert num_preempted > 0


def test_a_preemption_costs_nobody_else_its_token() -> None:
    """vllm-fork#2247: the preempted one stayed in the running list, and all behind it got no step."""
    engine, sequences = under_pressure()
    for _ in range(200):
        decoding = {each.id for each in engine.running() if each.is_decoding}
        before = {each.id: each.num_preemptions for each in sequences}
        plan, _ = step(engine)
        just_now = {each.id for each in sequences if each.num_preemptions > before[each.id]}
        assert decoding - just_now <= set(planned(plan))
        engine.check_integrity()


def test_with_an_empty_cache_whoever_waits_is_admitted_whatever_is_expected_of_its_answer() -> None:
    """vllm-metal#479: requests waited for ever while 0 % of the cache was in use."""
    engine = scheduler(num_blocks=16, kv_cache_utilization_limit=1.0)
    for index in range(40):  # now every answer is expected to fill the cache
        submit(engine, sequence(f"s{index}", num_prompt_tokens=24, max_tokens=40))
    run_until_idle(engine)
    submit(engine, sequence("next", num_prompt_tokens=24, max_tokens=40, arrived_at=1.0))
    plan, _ = step(engine)
    assert planned(plan) == ["next"]


def test_a_tenant_far_over_its_share_runs_at_once_when_nobody_else_wants_the_engine() -> None:
    """local-inference-lab/vllm#733: the gate for compute shares let nobody through."""
    engine = scheduler()
    submit(engine, sequence("modest", tenant="modest", max_tokens=2))
    for index in range(10):
        submit(engine, sequence(f"greedy{index}", tenant="greedy", num_prompt_tokens=60))
    run_until_idle(engine)
    submit(engine, sequence("more", tenant="greedy", arrived_at=1.0))
    plan, _ = step(engine)
    assert planned(plan) == ["more"]


def test_a_tenant_over_its_share_uses_what_the_one_whose_turn_it_is_cannot() -> None:
    """local-inference-lab/vllm#733: fairness must not leave the engine idle."""
    engine = scheduler(num_blocks=20, kv_cache_utilization_limit=1.0)
    submit(engine, sequence("runs", tenant="modest", num_prompt_tokens=20, max_tokens=40))
    while engine.num_running(SequenceClass.INTERACTIVE) == 0 or engine.num_waiting(SequenceClass.INTERACTIVE):
        step(engine)
    large = sequence("large", tenant="modest", num_prompt_tokens=8, max_tokens=60, arrived_at=1.0)
    submit(engine, large)
    for index in range(8):
        submit(engine, sequence(f"s{index}", tenant="greedy", num_prompt_tokens=8, max_tokens=1))
    for _ in range(8):
        step(engine)
    greedy, modest = (engine.virtual(SequenceClass.INTERACTIVE, each) for each in ("greedy", "modest"))
    assert greedy > modest + engine.quantum
    submit(engine, sequence("small", tenant="greedy", num_prompt_tokens=4, arrived_at=2.0))
    plan, _ = step(engine)
    assert "small" in planned(plan)
    assert large.scheduled_at is None


def test_tokens_are_neither_lost_nor_repeated_by_preemption() -> None:
    """vllm#48245: stale output after a preemption dropped or doubled a token when the request came back."""
    engine, sequences = under_pressure(8)
    run_until_idle(engine)
    assert sum(each.num_preemptions for each in sequences) > 4
    for each in sequences:
        assert each.token_ids[4:] == expected_output(each)


# --- who gives way -------------------------------------------------------------------------------------


def uneven(seed: int) -> tuple[Scheduler, list[Sequence]]:
    """Requests of one tenant that need their next blocks at different times."""
    rng = random.Random(seed)
    engine = scheduler(num_blocks=20, max_num_seqs=8, kv_cache_utilization_limit=1.0)
    expect_short_answers(engine)
    sequences = [
        sequence(
            f"s{index}",
            num_prompt_tokens=rng.randrange(1, 12),
            max_tokens=rng.randrange(20, 50),
            arrived_at=float(index),
        )
        for index in range(7)
    ]
    for each in sequences:
        submit(engine, each)
    return engine, sequences


@pytest.mark.parametrize("seed", range(8))
def test_preempted_requests_of_a_tenant_wait_in_the_order_in_which_they_arrived(seed: int) -> None:
    """vllm#41951: a preempted request lost its place to others that came later."""
    engine, sequences = uneven(seed)
    room = engine._roster.rooms[SequenceClass.INTERACTIVE]
    while engine.has_work:
        step(engine)
        for lane in (room.short, room.long):
            parked = [
                each.arrived_at for line in lane.all_of("tenant") for each in line if each.num_preemptions
            ]
            assert parked == sorted(parked)
    assert sum(each.num_preemptions for each in sequences) > 0


@pytest.mark.parametrize("seed", range(8))
def test_the_newest_gives_way_even_if_it_is_the_one_that_needs_a_block(seed: int) -> None:
    engine, sequences = uneven(seed)
    while engine.has_work:
        before = {each.id: each.num_preemptions for each in engine.running()}
        step(engine)
        kept = [each.arrived_at for each in engine.running() if each.id in before]
        just_now = [each for each in sequences if each.num_preemptions > before.get(each.id, 1000)]
        assert all(max(kept, default=0.0) < each.arrived_at for each in just_now)


# --- waiting for what another computes -----------------------------------------------------------------


def test_a_person_does_not_wait_for_a_prompt_that_paused_offline_work_has_begun() -> None:
    """Its blocks are being computed, but nobody computes them: the guardrails hold offline work back."""
    engine = scheduler(max_num_seqs=4, offline_kv_utilization_limit=0.9)
    submit(engine, named(sequence("offline", num_prompt_tokens=40, offline=True)))
    step(engine)
    engine.restrict(Restrictions(level=1))
    submit(engine, named(sequence("person", num_prompt_tokens=40, arrived_at=1.0)))
    plan, _ = step(engine)
    assert planned(plan) == ["person"]


def test_a_person_does_not_wait_for_a_prompt_whose_request_gave_its_seat_up() -> None:
    engine = scheduler(max_num_seqs=2, offline_kv_utilization_limit=0.9, num_blocks=128)
    submit(engine, named(sequence("offline", num_prompt_tokens=60, offline=True)))
    step(engine)
    submit(engine, sequence("runs", tenant="other", max_tokens=60, arrived_at=1.0))
    submit(engine, sequence("too", tenant="other", max_tokens=6, arrived_at=1.0))
    for _ in range(3):
        step(engine)
    person = named(sequence("person", num_prompt_tokens=60, arrived_at=2.0))
    submit(engine, person)
    for _ in range(20):
        step(engine)
    assert person.first_token_at is not None
