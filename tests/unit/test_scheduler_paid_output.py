"""No token is generated that is not paid for: a sequence pauses there, until it is extended or ended."""

import random

import pytest

from engine.core.outcome import Ended
from engine.core.scheduler import Scheduler
from engine.core.sequence import EndReason, Sequence
from engine.loop import STALLED_AFTER_SECONDS
from tests.builders.loops import LettersRunner, stepped_loop
from tests.builders.sequences import expected_output, run_until_idle, scheduler, sequence, step, submit


def paid(id: str, num_paid_tokens: int, **wishes: object) -> Sequence:
    each = sequence(id, **wishes)  # type: ignore[arg-type]  # names are checked by it
    each.num_paid_tokens = num_paid_tokens
    return each


def steps(engine: Scheduler, count: int) -> None:
    for _ in range(count):
        step(engine)


@pytest.mark.parametrize("offline", [False, True])
def test_it_pauses_where_its_payment_ends_and_goes_on_when_it_is_extended(offline: bool) -> None:
    engine, each = scheduler(), paid("s", 3, max_tokens=8, offline=offline)
    submit(engine, each)
    steps(engine, 10)
    assert each.num_output_tokens == 3
    assert engine.plan_step(0.0) is None
    assert engine.extend(each, 5, is_last=False) is None
    steps(engine, 10)
    assert each.num_output_tokens == 5
    engine.extend(each, 8, is_last=False)
    (end,) = [one for one in run_until_idle(engine) if isinstance(one, Ended)]
    assert end.reason is EndReason.LENGTH
    assert each.token_ids[4:] == expected_output(each)


def test_others_go_on_while_it_pauses() -> None:
    engine, pausing, other = scheduler(), paid("pausing", 2, max_tokens=20), sequence("other", max_tokens=20)
    submit(engine, pausing)
    submit(engine, other)
    steps(engine, 30)
    assert (pausing.num_output_tokens, other.num_output_tokens) == (2, 20)


def test_the_last_extension_ends_one_that_has_paused_already() -> None:
    engine, each = scheduler(), paid("s", 3, max_tokens=8)
    submit(engine, each)
    steps(engine, 10)
    end = engine.extend(each, 3, is_last=True)
    assert isinstance(end, Ended)
    assert end.reason is EndReason.LENGTH
    assert not engine.has_work
    engine.check_integrity()


def test_the_last_extension_ends_one_that_still_runs_where_its_payment_ends() -> None:
    engine, each = scheduler(), paid("s", 5, max_tokens=8)
    submit(engine, each)
    steps(engine, 2)
    assert engine.extend(each, 5, is_last=True) is None
    (end,) = [one for one in run_until_idle(engine) if isinstance(one, Ended)]
    assert (end.reason, each.num_output_tokens) == (EndReason.LENGTH, 5)


def test_an_extension_of_what_is_paid_for_as_a_whole_changes_nothing() -> None:
    engine, each = scheduler(), sequence("s", max_tokens=8)
    submit(engine, each)
    steps(engine, 2)
    assert engine.extend(each, 3, is_last=True) is None
    run_until_idle(engine)
    assert each.num_output_tokens == 8


@pytest.mark.parametrize("seed", range(20))
def test_what_is_preempted_and_computed_again_samples_nothing_that_is_not_paid_for(seed: int) -> None:
    chance = random.Random(seed)
    engine = scheduler(num_blocks=16, max_num_seqs=6, kv_cache_utilization_limit=1.0)
    sequences = [
        paid(
            f"s{index}", chance.randint(1, 8),
            tenant="abc"[index % 3], max_tokens=24, arrived_at=float(index), offline=chance.random() < 0.3,
        )
        for index in range(8)
    ]  # fmt: skip
    live = {each.id: each for each in sequences if submit(engine, each) is None}
    for _ in range(400):
        ended = [one.sequence.id for one in step(engine)[1] if isinstance(one, Ended)]
        live = {id: each for id, each in live.items() if id not in ended}
        if live and chance.random() < 0.3:
            each = live[chance.choice(list(live))]
            assert each.num_paid_tokens is not None
            engine.extend(each, each.num_paid_tokens + chance.randint(1, 6), is_last=False)
        for each in sequences:
            assert each.num_paid_tokens is not None
            assert each.num_output_tokens <= each.num_paid_tokens
        engine.check_integrity()
    for each in live.values():
        engine.extend(each, 24, is_last=False)
    run_until_idle(engine)
    assert all(each.token_ids[4:] == expected_output(each) for each in sequences)


def test_an_engine_whose_only_work_waits_for_payment_is_healthy_and_wakes_when_it_comes() -> None:
    loop = stepped_loop(scheduler(), LettersRunner())
    each = paid("s", 2, max_tokens=4)
    loop.submit(each)
    loop.steps(6)
    loop.clock.now += STALLED_AFTER_SECONDS + 1
    loop.steps(2)
    assert loop.loop.progress.is_healthy(loop.clock.now)
    loop.loop.extend(None, "s", 4, is_last=False)
    loop.loop.extend(None, "unknown", 4, is_last=True)
    loop.loop.extend("another owner", "s", 0, is_last=True)
    loop.run_until_idle()
    assert each.num_output_tokens == 4
