"""A request that is cancelled, in whatever state: its blocks are free at once, and nobody else notices."""

from collections.abc import Callable

import pytest

from engine.core.outcome import Ended, Sampled
from engine.core.scheduler import Scheduler
from engine.core.sequence import EndReason, Sequence
from engine.core.step import StepResult
from tests.builders.pressure import expect_short_answers
from tests.builders.sequences import (
    compute,
    expected_output,
    run_until_idle,
    scheduler,
    sequence,
    step,
    submit,
)

Scene = tuple[Scheduler, Sequence]


def named(each: Sequence, namespace: bytes = b"tenant") -> Sequence:
    """With a namespace its blocks are cached."""
    each.cache_namespace = namespace
    return each


def num_blocks_by_state(engine: Scheduler) -> tuple[int, int]:
    """Used, and free or cached."""
    return engine.kv_cache.num_used_blocks, engine.kv_cache.num_free_blocks


def just_submitted() -> Scene:
    engine, doomed = scheduler(), named(sequence(num_prompt_tokens=20))
    submit(engine, doomed)
    return engine, doomed


def waiting_for_a_seat() -> Scene:
    engine, doomed = scheduler(max_num_seqs=1), named(sequence("doomed", arrived_at=1.0))
    submit(engine, sequence("runs", max_tokens=40))
    submit(engine, doomed)
    step(engine)
    return engine, doomed


def waiting_with_a_cached_prompt() -> Scene:
    """Its prompt is in the cache, and the blocks were looked up before there was a seat for it."""
    engine, doomed = (
        scheduler(max_num_seqs=1),
        named(sequence("doomed", num_prompt_tokens=20, arrived_at=1.0)),
    )
    submit(engine, named(sequence("same prompt", num_prompt_tokens=20)))
    run_until_idle(engine)
    submit(engine, sequence("runs", max_tokens=40))
    step(engine)
    submit(engine, doomed)
    step(engine)
    assert engine.kv_cache.num_cached_tokens(doomed) == 16
    return engine, doomed


def waiting_for_blocks_that_another_computes() -> Scene:
    engine, doomed = scheduler(), named(sequence("doomed", num_prompt_tokens=20, arrived_at=1.0))
    submit(engine, named(sequence("computes", num_prompt_tokens=20)))
    step(engine)
    submit(engine, doomed)
    return engine, doomed


def in_the_middle_of_its_prompt() -> Scene:
    engine, doomed = scheduler(), named(sequence(num_prompt_tokens=30))
    submit(engine, doomed)
    step(engine)
    assert 0 < doomed.num_computed_tokens < 30
    return engine, doomed


def decoding() -> Scene:
    engine, doomed = scheduler(), named(sequence(num_prompt_tokens=6, max_tokens=40))
    submit(engine, doomed)
    for _ in range(5):
        step(engine)
    assert doomed.is_decoding
    return engine, doomed


def short_of_memory(*, num_tokens_of_the_old: int = 20) -> Scene:
    """Preempted: it waits again, with some of its blocks."""
    engine = scheduler(num_blocks=10, max_num_seqs=2, kv_cache_utilization_limit=1.0)
    expect_short_answers(engine)
    doomed = named(sequence("doomed", num_prompt_tokens=8, max_tokens=20, arrived_at=1.0, deadline=50.0))
    submit(engine, sequence("old", num_prompt_tokens=8, max_tokens=num_tokens_of_the_old))
    step(engine)
    submit(engine, doomed)
    for _ in range(30):
        if not doomed.num_preemptions:
            step(engine)
    assert doomed.num_preemptions
    assert doomed.block_table
    return engine, doomed


def robbed_of_all_blocks() -> Scene:
    engine, doomed = short_of_memory(num_tokens_of_the_old=30)
    for _ in range(30):
        if doomed.block_table:
            step(engine)
    assert not doomed.block_table
    return engine, doomed


def offline_that_gave_its_seat_up() -> Scene:
    engine = scheduler(max_num_seqs=1, offline_kv_utilization_limit=0.9)
    doomed = named(sequence("doomed", num_prompt_tokens=6, max_tokens=40, offline=True, deadline=50.0))
    submit(engine, doomed)
    step(engine)
    submit(engine, sequence("person", max_tokens=40, arrived_at=1.0))
    step(engine)
    assert doomed.num_preemptions == 1
    return engine, doomed


STATES = [
    just_submitted,
    waiting_for_a_seat,
    waiting_with_a_cached_prompt,
    waiting_for_blocks_that_another_computes,
    in_the_middle_of_its_prompt,
    decoding,
    short_of_memory,
    robbed_of_all_blocks,
    offline_that_gave_its_seat_up,
]


@pytest.mark.parametrize("scene", STATES)
def test_an_abort_in_any_state_gives_all_blocks_back_at_once(scene: Callable[[], Scene]) -> None:
    """vllm#46283: blocks were held for a completion that never came, and the pool drained."""
    engine, doomed = scene()
    others = sum(len(each.block_table) for each in engine.sequences() if each is not doomed)
    outcome = engine.cancel(doomed)
    assert isinstance(outcome, Ended)
    assert outcome.reason is EndReason.CANCELLED
    assert num_blocks_by_state(engine) == (others, engine.kv_cache.num_blocks - others)
    engine.check_integrity()


@pytest.mark.parametrize("scene", STATES)
def test_after_an_abort_in_any_state_the_others_finish_as_if_nothing_had_happened(
    scene: Callable[[], Scene],
) -> None:
    """vllm#44100: an abort left locks on what had been looked up, and whoever needed it waited for ever."""
    engine, doomed = scene()
    others = [each for each in engine.sequences() if each is not doomed]
    engine.cancel(doomed)
    run_until_idle(engine)
    for each in others:
        assert each.token_ids[each.num_prompt_tokens :] == expected_output(each)
    assert engine.kv_cache.num_used_blocks == 0
    engine.check_integrity()


@pytest.mark.parametrize("scene", STATES)
def test_an_id_is_free_again_after_an_abort_in_any_state(scene: Callable[[], Scene]) -> None:
    """vllm#14326: entries of aborted requests stayed in the engine's maps."""
    engine, doomed = scene()
    engine.cancel(doomed)
    again = sequence(doomed.id, num_prompt_tokens=5, arrived_at=2.0)
    assert submit(engine, again) is None
    run_until_idle(engine)
    assert again.token_ids[5:] == expected_output(again)


@pytest.mark.parametrize("scene", STATES)
def test_nothing_happens_when_the_time_of_an_aborted_request_runs_out(scene: Callable[[], Scene]) -> None:
    engine, doomed = scene()
    engine.cancel(doomed)
    assert doomed not in [outcome.sequence for outcome in engine.expire(1e10)]


@pytest.mark.parametrize("scene", [short_of_memory, offline_that_gave_its_seat_up, robbed_of_all_blocks])
def test_what_a_preempted_request_holds_is_free_at_its_deadline(scene: Callable[[], Scene]) -> None:
    """vllm#46289: a hold without a deadline is one that may last for ever."""
    engine, doomed = scene()
    outcomes = engine.expire(50.0)
    assert [outcome.sequence.id for outcome in outcomes] == ["doomed"]
    assert not doomed.block_table
    engine.check_integrity()


def test_a_step_that_was_launched_before_an_abort_brings_nothing_and_frees_nothing_twice() -> None:
    """vllm#56089: a late completion of an aborted request tripped an assertion and killed the engine."""
    engine, doomed = scheduler(), sequence("doomed", max_tokens=20)
    other = sequence("other", tenant="b", arrived_at=1.0, max_tokens=20)
    submit(engine, doomed)
    submit(engine, other)
    plan = engine.plan_step(0.0)
    assert plan is not None
    engine.cancel(doomed)
    (outcome,) = engine.apply(plan, compute(plan), 0.0)
    assert isinstance(outcome, Sampled)
    assert outcome.sequence is other
    engine.check_integrity()


def test_a_result_of_ids_that_nobody_knows_is_ignored() -> None:
    """vllm-ascend#16662: completions were matched by the liveness of their ids."""
    engine, alone = scheduler(), sequence("alone")
    submit(engine, alone)
    plan = engine.plan_step(0.0)
    assert plan is not None
    sampled = {"alone": (101,), "unknown": (5,)}
    result = StepResult(step_id=plan.step_id, sampled=sampled, errors={"stranger": "a late error"})
    (outcome,) = engine.apply(plan, result, 0.0)
    assert outcome.sequence is alone
    engine.check_integrity()


def test_a_step_launched_before_an_abort_is_not_taken_for_the_next_request_of_that_id() -> None:
    """vllm#48245: output of a step in flight was counted to what had taken its place since."""
    engine, doomed = scheduler(), sequence("r1", max_tokens=20)
    submit(engine, doomed)
    plan = engine.plan_step(0.0)
    assert plan is not None
    engine.cancel(doomed)
    successor = sequence("r1", num_prompt_tokens=7, arrived_at=1.0)
    submit(engine, successor)
    assert engine.apply(plan, compute(plan), 0.0) == []
    run_until_idle(engine)
    assert successor.token_ids[7:] == expected_output(successor)


def test_blocks_in_use_by_a_launched_step_are_no_leak() -> None:
    """sglang#16067: a leak detector fired because it took the server for idle."""
    engine = scheduler()
    submit(engine, sequence("a", num_prompt_tokens=20))
    while engine.has_work:
        plan = engine.plan_step(0.0)
        assert plan is not None
        engine.check_integrity()
        engine.apply(plan, compute(plan), 0.0)
        engine.check_integrity()


def test_a_block_that_nobody_holds_and_that_is_not_free_is_noticed() -> None:
    engine, leaking = scheduler(), sequence("leaking", num_prompt_tokens=20)
    submit(engine, leaking)
    step(engine)
    leaking.block_table.pop()
    with pytest.raises(AssertionError, match="reference counts"):
        engine.check_integrity()


def test_the_step_after_an_abort_computes_nothing_of_it() -> None:
    """mini-sglang#15: zombies kept decoding, and the next request's first token took half as long again."""
    engine = scheduler()
    zombies = [sequence(f"zombie{index}", max_tokens=60) for index in range(3)]
    for zombie in zombies:
        submit(engine, zombie)
    for _ in range(3):
        step(engine)
    for zombie in zombies:
        engine.cancel(zombie)
    submit(engine, sequence("next", num_prompt_tokens=8, arrived_at=1.0))
    plan, outcomes = step(engine)
    assert plan is not None
    assert [row.sequence_id for row in plan.rows] == ["next"]
    assert [outcome.sequence.id for outcome in outcomes] == ["next"]


@pytest.mark.parametrize("num_steps", [2, 3, 8])
def test_what_an_aborted_request_had_computed_is_not_computed_again(num_steps: int) -> None:
    """llama.cpp#29163: a dropped connection threw the prompt's cache away; computing it took half an hour."""
    engine, leaving = scheduler(), named(sequence("leaving", num_prompt_tokens=30, max_tokens=40))
    submit(engine, leaving)
    for _ in range(num_steps):
        step(engine)
    num_whole = leaving.num_computed_tokens // 4 * 4
    engine.cancel(leaving)
    back = named(sequence("back", num_prompt_tokens=30, arrived_at=1.0))
    submit(engine, back)
    step(engine)
    assert back.num_cached_tokens == min(num_whole, 28)  # one token at least is left to be computed
