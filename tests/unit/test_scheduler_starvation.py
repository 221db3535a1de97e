"""Nobody starves: neither streams, nor long prompts, nor what is hard to fit, nor small tenants."""

from collections import Counter

import pytest

from engine.core.guardrails import Restrictions
from engine.core.outcome import Ended, Sampled
from engine.core.planner import LONG_LANE_EVERY, MAX_SKIPS
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence, SequenceClass
from engine.core.step import StepPlan
from tests.builders.sequences import run_until_idle, scheduler, sequence, step, submit


def planned(plan: StepPlan | None) -> list[str]:
    return [] if plan is None else [row.sequence_id for row in plan.rows]


def steps_until_first_token(engine: Scheduler, waited_for: Sequence, *, most: int = 500) -> int:
    for count in range(1, most + 1):
        step(engine)
        if waited_for.first_token_at is not None:
            return count
    raise AssertionError(f"no token in {most} steps")


# --- streams and prompts -------------------------------------------------------------------------------


def test_250_streams_have_a_token_in_every_step_while_prompts_flood_in() -> None:
    """sglang#32549: prefill went first, and 250 streams got a step of decoding every 24 s."""
    engine = scheduler(
        num_blocks=6000, max_num_seqs=260, max_num_batched_tokens=300, max_num_prefill_tokens=250
    )
    streams = {f"stream{index}" for index in range(250)}
    for id in streams:
        submit(engine, sequence(id, num_prompt_tokens=1, max_tokens=60))
    while engine.num_waiting(SequenceClass.INTERACTIVE):
        step(engine)
    for number in range(20):
        submit(engine, sequence(f"prompt{number}", tenant="flood", num_prompt_tokens=64, arrived_at=1.0))
        plan, outcomes = step(engine)
        assert streams <= set(planned(plan))
        assert streams <= {each.sequence.id for each in outcomes if isinstance(each, Sampled)}


def test_a_short_prompt_has_its_first_token_at_once_although_a_long_one_is_computed() -> None:
    """sglang#23152: a long prefill made the first token of short requests take 9.5 times as long."""
    engine = scheduler(num_blocks=256)
    submit(engine, sequence("long", tenant="long", num_prompt_tokens=120))
    step(engine)
    short = sequence("short", num_prompt_tokens=6, arrived_at=1.0)
    submit(engine, short)
    assert steps_until_first_token(engine, short) == 1


def test_a_long_prompt_comes_to_its_end_while_short_ones_flood_in() -> None:
    """The other side of it: what lets short prompts pass must not stop the long one."""
    engine = scheduler(num_blocks=256, max_num_seqs=8)
    long = sequence("long", tenant="long", num_prompt_tokens=100, max_tokens=1)
    submit(engine, long)
    num_steps = 0
    while long.first_token_at is None:
        for index in range(3):
            submit(engine, sequence(f"short{num_steps}.{index}", num_prompt_tokens=8, max_tokens=1))
        step(engine)
        num_steps += 1
    assert num_steps <= 100 / 2  # the least of its chunks is a quarter of eight tokens


def test_a_long_prompt_that_others_went_before_is_taken_up_again() -> None:
    """vllm#44794: a suspended prefill never resumed."""
    engine = scheduler(num_blocks=512, max_num_seqs=8)
    suspended = sequence("suspended", tenant="greedy", num_prompt_tokens=60, max_tokens=1)
    suspended.weight = 0.01  # what it has had counts for far more than what all others will get
    submit(engine, suspended)
    step(engine)
    for index in range(6):  # of a tenant that has had nothing yet
        submit(engine, sequence(f"long{index}", tenant="modest", num_prompt_tokens=100, arrived_at=1.0))
    gaps, last = [], 0
    for number in range(1, 400):
        plan, _ = step(engine)
        if "suspended" in planned(plan):
            gaps.append(number - last)
            last = number
        if suspended.first_token_at is not None:
            break
    assert suspended.first_token_at is not None
    assert max(gaps) <= LONG_LANE_EVERY


def test_a_prompt_goes_on_although_every_step_is_longer_than_the_guard() -> None:
    """vllm#44794 at its border: no time is left for prefill in any step, and it goes on all the same."""
    engine = Scheduler(
        limits=scheduler().limits,
        kv_cache=scheduler(num_blocks=256).kv_cache,
        vocab_size=200,
        itl_guard_seconds=0.001,
    )
    for number in range(200):
        num_prefill_tokens, num_decode_rows = number % 12, 1 + number % 4
        plan = StepPlan(
            step_id=0, rows=(), num_prefill_tokens=num_prefill_tokens, num_decode_rows=num_decode_rows
        )
        engine.observe(plan, 0.1 + 0.01 * num_prefill_tokens + 0.001 * num_decode_rows)
    stream = sequence("stream", max_tokens=60)
    submit(engine, stream)
    step(engine)
    prompt = sequence("prompt", tenant="new", num_prompt_tokens=40, arrived_at=1.0)
    submit(engine, prompt)
    assert steps_until_first_token(engine, prompt) <= 40
    assert stream.num_output_tokens < 60  # somebody read along all the time


def test_offline_prompts_that_the_guardrails_stopped_go_on_when_they_let_go() -> None:
    engine = scheduler()
    offline = sequence("offline", num_prompt_tokens=40, offline=True)
    submit(engine, offline)
    step(engine)
    computed = offline.num_computed_tokens
    engine.restrict(Restrictions(level=1))
    assert step(engine)[0] is None
    assert offline.num_computed_tokens == computed
    engine.restrict(Restrictions(level=0))
    run_until_idle(engine)
    assert offline.num_output_tokens == 4


# --- who does not fit ----------------------------------------------------------------------------------


def crowded() -> tuple[Scheduler, Sequence]:
    """For a long time the cache has room for light requests only, and the one whose turn it is, is not."""
    engine = scheduler(
        num_blocks=40, max_num_seqs=40, max_num_batched_tokens=64, kv_cache_utilization_limit=1.0
    )
    for index in range(2):
        submit(engine, sequence(f"runs{index}", num_prompt_tokens=8, max_tokens=60))
    step(engine)
    head = sequence("head", tenant="a", num_prompt_tokens=8, max_tokens=64, arrived_at=1.0)
    submit(engine, head)
    return engine, head


def test_light_requests_pass_one_that_does_not_fit() -> None:
    """vllm#31731: the first that did not fit ended the search, and light ones waited 32 s, not 0.7 s."""
    engine, head = crowded()
    light = sequence("light", tenant="b", num_prompt_tokens=2, max_tokens=1, arrived_at=2.0)
    submit(engine, light)
    step(engine)
    assert light.scheduled_at is not None
    assert head.scheduled_at is None


def test_one_that_does_not_fit_is_passed_only_so_often() -> None:
    """vllm#31731, the other side: with skipping unbounded, the blocked head waits as long as others come."""
    engine, head = crowded()
    num_passed, number = 0, 0
    while head.scheduled_at is None:
        assert number < 500
        submit(engine, sequence(f"light{number}", tenant=f"b{number}", num_prompt_tokens=2, arrived_at=2.0))
        submit(engine, sequence(f"other{number}", tenant=f"c{number}", num_prompt_tokens=2, arrived_at=2.0))
        before = engine.num_waiting(SequenceClass.INTERACTIVE)
        step(engine)
        if head.scheduled_at is None:
            num_passed += before - engine.num_waiting(SequenceClass.INTERACTIVE)
        number += 1
    assert 0 < num_passed < MAX_SKIPS + 6  # it is counted by the step, and a step takes up to six


# --- classes -------------------------------------------------------------------------------------------


def test_a_person_displaces_offline_work_when_seats_are_short_and_not_memory() -> None:
    """vllm#40004: priority had no effect when max_num_seqs was the limit."""
    engine = scheduler(num_blocks=1000, max_num_seqs=2)
    for index in range(2):
        submit(engine, sequence(f"offline{index}", offline=True, max_tokens=60))
    step(engine)
    submit(engine, sequence("person", arrived_at=1.0))
    plan, outcomes = step(engine)
    assert planned(plan) == ["offline0", "person"] or planned(plan) == ["person", "offline0"]
    assert "person" in [each.sequence.id for each in outcomes]
    assert len(list(engine.running())) == 2


@pytest.mark.parametrize("age_seconds", [1.0, 3600.0, 1e6])
def test_however_long_offline_work_has_waited_a_person_goes_first(age_seconds: float) -> None:
    """loom#376: ageing lifted work of the low class above interactive requests."""
    engine = scheduler(max_num_seqs=1, waiting_timeout_ms=2_000_000_000)
    submit(engine, sequence("runs", max_tokens=30, arrived_at=0.0))
    submit(engine, sequence("offline", offline=True, arrived_at=0.0))
    for _ in range(5):
        step(engine, now=age_seconds)
    submit(engine, sequence("person", arrived_at=age_seconds))
    ends = [each.sequence.id for each in run_until_idle(engine) if isinstance(each, Ended)]
    assert ends == ["runs", "person", "offline"]


def test_within_a_class_a_tenants_older_request_goes_first() -> None:
    engine = scheduler(max_num_seqs=1)
    for index in range(4):
        submit(engine, sequence(f"s{index}", arrived_at=float(index)))
    ends = [each.sequence.id for each in run_until_idle(engine) if isinstance(each, Ended)]
    assert ends == ["s0", "s1", "s2", "s3"]


# --- tenants -------------------------------------------------------------------------------------------


def served(engine: Scheduler, num_steps: int) -> Counter[str]:
    """Tokens computed for each tenant."""
    tokens: Counter[str] = Counter()
    for _ in range(num_steps):
        tenants = {each.id: each.tenant for each in engine.sequences()}
        plan, _ = step(engine)
        assert plan is not None
        tenants |= {each.id: each.tenant for each in engine.sequences()}
        for row in plan.rows:
            tokens[tenants[row.sequence_id]] += len(row.token_ids)
    return tokens


def test_requests_of_unequal_size_do_not_make_shares_unequal() -> None:
    """kthena#265: turns were counted in requests, so whoever sent large ones got most of the engine."""
    engine = scheduler(num_blocks=256, max_num_seqs=4)
    for index in range(400):
        small = sequence(f"small{index}", tenant="small", num_prompt_tokens=4, max_tokens=2)
        large = sequence(f"large{index}", tenant="large", num_prompt_tokens=8, max_tokens=24)
        submit(engine, small)
        submit(engine, large)
    for _ in range(300):
        step(engine)
    small, large = (engine.virtual(SequenceClass.INTERACTIVE, each) for each in ("small", "large"))
    largest_left_of_a_running_set = 2.0 * 24 * 4
    assert abs(small - large) <= engine.quantum + 2 * largest_left_of_a_running_set
    assert min(small, large) > 1000


def test_a_tenant_that_was_idle_gets_its_turn_and_no_more() -> None:
    """llm-d-router#1182: an idle tenant's saved-up turns pushed those aside who had been waiting."""
    engine = scheduler(num_blocks=512, max_num_seqs=4)
    for index in range(300):
        submit(engine, sequence(f"busy{index}", tenant="busy", num_prompt_tokens=8, max_tokens=4))
    served(engine, 100)
    for index in range(100):
        submit(engine, sequence(f"back{index}", tenant="back", num_prompt_tokens=8, max_tokens=4))
    tokens = served(engine, 60)
    assert tokens["back"] == pytest.approx(tokens["busy"], rel=0.2)


def test_a_newcomer_among_many_pending_requests_of_another_is_admitted_next() -> None:
    """kthena#265: usage over a sliding window said nothing of the queue in front of the newcomer."""
    engine = scheduler(max_num_seqs=1)
    for index in range(100):
        submit(engine, sequence(f"busy{index}", tenant="busy", max_tokens=1))
    for _ in range(10):
        step(engine)
    new = sequence("new", tenant="new", arrived_at=1.0)
    submit(engine, new)
    assert steps_until_first_token(engine, new) <= 2  # among equals, whoever came first is first
