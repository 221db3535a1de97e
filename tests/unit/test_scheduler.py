"""What each step takes up, and in which order."""

import pytest

from engine.core.limits import LimitError, Limits
from engine.core.outcome import Broken, Ended, Refused, Sampled
from engine.core.sequence import EndReason, SequenceClass
from engine.core.step import StepPlan, StepResult
from tests.builders.sequences import expected_output, run_until_idle, scheduler, sequence, step, submit


def chunks(plan: StepPlan | None) -> dict[str, int]:
    assert plan is not None
    return {row.sequence_id: len(row.token_ids) for row in plan.rows}


def test_a_prompt_is_computed_in_chunks_and_samples_only_at_its_end() -> None:
    engine = scheduler()
    submit(engine, sequence("long", num_prompt_tokens=20))
    sizes, samples = [], []
    for _ in range(3):
        plan, _ = step(engine)
        assert plan is not None
        sizes.append(len(plan.rows[0].token_ids))
        samples.append(plan.rows[0].sampling is not None)
    assert sizes == [8, 8, 4]
    assert samples == [False, False, True]


def test_decodes_are_in_every_step_whatever_prefills_wait() -> None:
    engine = scheduler()
    submit(engine, sequence("decodes", max_tokens=20))
    step(engine)
    for index in range(3):
        submit(engine, sequence(f"prompt{index}", num_prompt_tokens=60))
    for _ in range(10):
        plan, _ = step(engine)
        assert chunks(plan)["decodes"] == 1
        assert plan is not None
        assert plan.rows[0].sequence_id == "decodes"  # decode rows first


def test_a_short_prompt_shares_a_step_with_a_long_one() -> None:
    engine = scheduler()
    submit(engine, sequence("long", num_prompt_tokens=60))
    step(engine)
    submit(engine, sequence("short", num_prompt_tokens=4, arrived_at=1.0))
    plan, outcomes = step(engine)
    assert chunks(plan) == {"long": 8, "short": 4}
    assert [outcome.sequence.id for outcome in outcomes] == ["short"]


def test_prefills_stay_within_their_own_budget() -> None:
    engine = scheduler(max_num_seqs=8)
    for index in range(5):
        submit(engine, sequence(f"p{index}", num_prompt_tokens=8))
    plan, _ = step(engine)
    assert plan is not None
    assert plan.num_tokens == 12


def test_tenants_are_admitted_in_turns() -> None:
    engine = scheduler(max_num_seqs=3)
    for index in range(5):
        submit(engine, sequence(f"big{index}", tenant="big"))
    submit(engine, sequence("small", tenant="small"))
    plan, _ = step(engine)
    assert list(chunks(plan)) == ["small", "big0", "big1"]  # who has least waiting is first


def test_long_prompts_fill_only_their_lane_and_hold_up_no_short_one() -> None:
    engine = scheduler(long_context_threshold=8, max_num_long_context_seqs=1)
    for index in range(3):
        submit(engine, sequence(f"long{index}", num_prompt_tokens=9, arrived_at=0.0, max_tokens=1))
    submit(engine, sequence("short", num_prompt_tokens=3, arrived_at=1.0))
    plan, _ = step(engine)
    assert set(chunks(plan)) == {"long0", "short"}
    ends = [outcome.sequence.id for outcome in run_until_idle(engine) if isinstance(outcome, Ended)]
    assert [end for end in ends if end != "short"] == ["long0", "long1", "long2"]


def test_offline_work_waits_while_interactive_work_does() -> None:
    engine = scheduler(max_num_seqs=1)
    submit(engine, sequence("offline", offline=True))
    submit(engine, sequence("interactive", arrived_at=1.0))
    plan, _ = step(engine)
    assert list(chunks(plan)) == ["interactive"]
    assert engine.num_waiting(SequenceClass.OFFLINE) == 1


def test_when_blocks_run_out_the_newest_gives_way_and_both_answers_are_whole() -> None:
    engine = scheduler(num_blocks=10, block_size=4, max_num_seqs=2, kv_cache_utilization_limit=1.0)
    old = sequence("old", num_prompt_tokens=8, max_tokens=20)
    new = sequence("new", num_prompt_tokens=8, max_tokens=20, arrived_at=1.0)
    submit(engine, old)
    submit(engine, new)
    ends = [outcome for outcome in run_until_idle(engine) if isinstance(outcome, Ended)]
    assert [end.sequence.id for end in ends] == ["old", "new"]
    for each in (old, new):
        assert each.token_ids[8:] == expected_output(each)
    assert new.num_prompt_tokens_computed == 8  # recomputed, counted once
    engine.check_integrity()


def test_offline_gives_way_before_interactive_even_if_it_came_first() -> None:
    engine = scheduler(
        num_blocks=10,
        block_size=4,
        max_num_seqs=2,
        kv_cache_utilization_limit=1.0,
        offline_kv_utilization_limit=1.0,
    )
    submit(engine, sequence("offline", num_prompt_tokens=8, max_tokens=20, offline=True))
    step(engine)
    submit(engine, sequence("person", num_prompt_tokens=8, max_tokens=20, arrived_at=1.0))
    ends = [outcome for outcome in run_until_idle(engine) if isinstance(outcome, Ended)]
    assert [end.sequence.id for end in ends] == ["person", "offline"]


def test_a_stop_token_ends_the_answer_and_counts_as_sampled() -> None:
    engine = scheduler()
    stopping = sequence(num_prompt_tokens=4, max_tokens=20, stop_token_ids=frozenset({103}))
    submit(engine, stopping)
    ended = run_until_idle(engine)[-1]
    assert isinstance(ended, Ended)
    assert ended.reason is EndReason.STOP
    assert stopping.token_ids[4:] == [101, 102, 103]


def test_min_tokens_bans_stop_tokens_until_it_is_reached() -> None:
    engine = scheduler()
    stopping = sequence(num_prompt_tokens=4, min_tokens=3, stop_token_ids=frozenset({101, 104}))
    submit(engine, stopping)
    run_until_idle(engine)
    assert stopping.token_ids[4:] == [102, 102, 103, 104]


def test_cancelling_frees_the_blocks_at_once_wherever_the_sequence_is() -> None:
    engine = scheduler(max_num_seqs=1)
    running, waiting = sequence("running"), sequence("waiting")
    submit(engine, running)
    submit(engine, waiting)
    step(engine)
    for each in (running, waiting):
        outcome = engine.cancel(each)
        assert isinstance(outcome, Ended)
        assert outcome.reason is EndReason.CANCELLED
    assert engine.kv_cache.num_used_blocks == 0
    assert not engine.has_work


def test_what_waits_too_long_is_refused_and_what_runs_past_its_deadline_ends() -> None:
    engine = scheduler(max_num_seqs=1, waiting_timeout_ms=1000)
    submit(engine, sequence("runs", deadline=5.0, max_tokens=60))
    step(engine)
    submit(engine, sequence("impatient", arrived_at=0.5, deadline=1.2))
    submit(engine, sequence("patient", arrived_at=0.5))
    assert engine.expire(1.0) == []
    (late,) = engine.expire(1.3)
    assert isinstance(late, Refused)
    assert late.refusal.reason.value == "deadline_infeasible"
    (waited,) = engine.expire(1.6)
    assert isinstance(waited, Refused)
    assert waited.refusal.reason.value == "waiting_timeout"
    (ended,) = engine.expire(5.0)
    assert isinstance(ended, Ended)
    assert ended.reason is EndReason.DEADLINE
    assert engine.kv_cache.num_used_blocks == 0


def test_a_row_that_fails_ends_alone() -> None:
    engine = scheduler()
    submit(engine, sequence("bad"))
    submit(engine, sequence("good", tenant="other", arrived_at=1.0))
    plan = engine.plan_step(0.0)
    assert plan is not None
    result = StepResult(step_id=plan.step_id, sampled={"good": (99,)}, errors={"bad": "not a number"})
    broken, sampled = engine.apply(plan, result, 0.0)
    assert isinstance(broken, Broken)
    assert broken.sequence.id == "bad"
    assert isinstance(sampled, Sampled)
    engine.check_integrity()


def test_time_to_a_token_counts_from_arrival_first_and_from_the_token_before_later() -> None:
    engine = scheduler()
    submit(engine, sequence(arrived_at=1.0))
    _, (first,) = step(engine, now=3.0)
    _, (second,) = step(engine, now=3.5)
    assert isinstance(first, Sampled)
    assert isinstance(second, Sampled)
    assert (first.waited_seconds, first.is_first) == (2.0, True)
    assert (second.waited_seconds, second.is_first) == (0.5, False)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"kv_cache_utilization_limit": 1.5}, "kv_cache_utilization_limit"),
        ({"max_num_batched_tokens": 10}, "max_num_batched_tokens"),
    ],
)
def test_limits_that_make_no_sense_name_their_key(changes: dict[str, float], key: str) -> None:
    with pytest.raises(LimitError, match=key):
        Limits(**changes)  # type: ignore[arg-type]


def test_a_row_that_was_to_sample_and_brought_no_token_ends_its_request() -> None:
    engine = scheduler()
    submit(engine, sequence("silent"))
    plan = engine.plan_step(0.0)
    assert plan is not None
    (broken,) = engine.apply(plan, StepResult(step_id=plan.step_id, sampled={}), 0.0)
    assert isinstance(broken, Broken)
    assert not engine.has_work
