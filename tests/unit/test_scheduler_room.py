"""Who gets room in the cache: limits at admission, and what offline work may stand in the way of."""

from dataclasses import replace

from engine.core.guardrails import Restrictions
from tests.builders.sequences import run_until_idle, scheduler, sequence, step, submit


def running(engine) -> set[str]:
    return {each.id for each in engine.running()}


def test_an_interactive_prompt_is_admitted_within_the_limit_however_much_offline_work_holds() -> None:
    engine = scheduler(num_blocks=20, kv_cache_utilization_limit=0.8, offline_kv_utilization_limit=1.0)
    submit(engine, sequence("offline", num_prompt_tokens=40, max_tokens=8, offline=True))
    for _ in range(5):
        step(engine)
    submit(engine, sequence("interactive", num_prompt_tokens=32, max_tokens=8, arrived_at=1.0))
    step(engine)
    assert "interactive" in running(engine)
    assert engine.kv_cache.num_used_blocks <= 16


def test_a_long_offline_prompt_takes_no_long_lane_from_interactive_ones() -> None:
    engine = scheduler(long_context_threshold=8, max_num_long_context_seqs=1)
    submit(engine, sequence("offline", num_prompt_tokens=20, offline=True))
    step(engine)
    engine.restrict(Restrictions(level=1))
    submit(engine, sequence("interactive", num_prompt_tokens=20, arrived_at=1.0))
    step(engine)
    assert "interactive" in running(engine)


def test_offline_answers_grow_no_further_than_the_part_of_the_cache_that_is_theirs() -> None:
    engine = scheduler(num_blocks=20, offline_kv_utilization_limit=0.5)
    together = [
        sequence(f"s{index}", num_prompt_tokens=4, max_tokens=30, offline=True, arrived_at=index)
        for index in range(4)
    ]
    for each in together:
        submit(engine, each)
    most = 0
    while engine.has_work:
        step(engine)
        most = max(most, engine.kv_cache.num_used_blocks)
    assert most <= 10
    assert all(each.num_output_tokens == 30 for each in together)


def test_offline_work_that_is_alone_takes_from_what_is_parked_before_it_goes_beyond_its_part() -> None:
    engine = scheduler(num_blocks=20, offline_kv_utilization_limit=0.5, max_num_seqs=2)
    for index in range(2):
        submit(engine, sequence(f"s{index}", num_prompt_tokens=16, max_tokens=4, offline=True))
    while not all(each.block_table for each in engine.sequences()):
        step(engine)
    persons = [sequence(f"p{index}", num_prompt_tokens=8, max_tokens=1, arrived_at=1.0) for index in range(2)]
    for each in persons:
        submit(engine, each)
    step(engine)
    submit(engine, sequence("late", tenant="a", num_prompt_tokens=32, max_tokens=4, offline=True))
    while engine.has_work:
        step(engine)
        assert engine.kv_cache.num_used_blocks <= 10


def test_who_gave_way_comes_back_when_there_is_room_for_it_once() -> None:
    """Forecasts counted it twice, as what it was and as what it would be: it waited for an empty cache."""
    budgets = {"max_num_batched_tokens": 64, "max_num_prefill_tokens": 64, "prefill_chunk_size": 32}
    engine = scheduler(num_blocks=20, kv_cache_utilization_limit=1.0, **budgets)
    for index, num_tokens in enumerate([8] * 17 + [12] * 4):
        submit(engine, sequence(f"warm{index}", max_tokens=num_tokens))
    run_until_idle(engine)
    goes_on = sequence("goes on", num_prompt_tokens=4, max_tokens=60)
    leaves = sequence("leaves", num_prompt_tokens=24, max_tokens=40, arrived_at=1.0)
    gives_way = sequence("gives way", num_prompt_tokens=24, max_tokens=40, arrived_at=2.0)
    for each in (goes_on, leaves, gives_way):
        submit(engine, each)
    for _ in range(10):
        step(engine)
    assert running(engine) == {"goes on", "leaves"}
    engine.cancel(leaves)
    step(engine)
    assert running(engine) == {"goes on", "gives way"}


def test_no_step_is_lost_when_the_only_one_that_runs_has_to_give_way() -> None:
    """All that offline work may hold was held by a parked one, and nobody ran for a step."""
    engine = scheduler(num_blocks=20, max_num_seqs=2, offline_kv_utilization_limit=0.9)
    served = sequence("served", tenant="a", num_prompt_tokens=24, max_tokens=20, offline=True)
    new = sequence("new", tenant="b", num_prompt_tokens=12, max_tokens=20, offline=True, arrived_at=1.0)
    for each in (served, new):
        submit(engine, each)
    while new.num_output_tokens == 0:
        step(engine)
    engine.set_limits(replace(engine.limits, max_num_seqs=1, offline_kv_utilization_limit=0.3))
    while engine.has_work:
        plan, _ = step(engine)
        assert plan is not None
