"""Health is forward progress: work that no step moves is a fault, and nothing else is."""

from collections.abc import Callable

import pytest

from engine.core.guardrails import Mode
from engine.core.scheduler import Scheduler
from engine.core.step import StepPlan, StepResult
from engine.loop import STALLED_AFTER_SECONDS, Configuration
from tests.builders.loops import LettersRunner, SteppedLoop, stepped_loop
from tests.builders.sequences import scheduler, sequence

LATER = STALLED_AFTER_SECONDS + 1


def is_healthy(loop: SteppedLoop) -> bool:
    return loop.loop.progress.is_healthy(loop.clock.now)


def paused(engine: Scheduler, runner: LettersRunner) -> SteppedLoop:
    """A loop whose guardrails hold offline work back, by an operator's order."""
    loop = stepped_loop(engine, runner)
    loop.loop.configure(
        Configuration(
            revision=1,
            limits=engine.limits,
            weights={},
            guardrail_mode=Mode.MANUAL,
            guardrail_level=1,
        )
    )
    return loop


def test_an_idle_engine_is_healthy_however_long_it_stands_still() -> None:
    loop = stepped_loop(scheduler(), LettersRunner())
    loop.submit(sequence())
    loop.run_until_idle()
    loop.clock.now += 100 * LATER
    assert is_healthy(loop)


def test_an_engine_whose_step_counter_moves_is_healthy_however_slow_its_steps_are() -> None:
    """gonka#1421: a busy engine missed short probes and was started anew eight times a day."""
    loop = stepped_loop(scheduler(), LettersRunner())
    loop.submit(sequence(max_tokens=20))
    for _ in range(20):
        loop.clock.now += STALLED_AFTER_SECONDS - 1
        loop.steps(1)
        assert is_healthy(loop)


@pytest.mark.parametrize("offline", [False, True])
def test_a_loop_that_spins_without_making_steps_is_unhealthy(
    offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm#53130: nobody was admitted any more; the process was healthy and only a restart helped."""
    engine = scheduler()
    monkeypatch.setattr(engine, "plan_step", lambda now: None)
    loop = stepped_loop(engine, LettersRunner())
    loop.submit(sequence(offline=offline))
    loop.steps(2)
    assert is_healthy(loop)
    loop.clock.now += LATER
    loop.steps(2)
    assert not is_healthy(loop)


def test_a_first_step_that_hangs_is_unhealthy() -> None:
    seen: list[bool] = []

    class Hanging(LettersRunner):
        def collect(self, in_flight: StepPlan) -> StepResult:
            loop.clock.now += LATER
            seen.append(is_healthy(loop))
            return super().collect(in_flight)

    loop = stepped_loop(scheduler(), Hanging())
    loop.submit(sequence())
    loop.steps(1)
    assert seen == [False]


def test_a_step_that_hangs_is_unhealthy_until_it_ends() -> None:
    seen: list[bool] = []

    class Hanging(LettersRunner):
        def collect(self, in_flight: StepPlan) -> StepResult:
            if in_flight.step_id == 4:
                loop.clock.now += LATER
                seen.append(is_healthy(loop))
            return super().collect(in_flight)

    loop = stepped_loop(scheduler(), Hanging())
    loop.submit(sequence(max_tokens=20))
    loop.steps(4)
    assert seen == [False]
    assert is_healthy(loop)


def test_offline_work_that_is_paused_is_no_reason_to_be_unhealthy() -> None:
    loop = paused(scheduler(), LettersRunner())
    loop.submit(sequence(offline=True))
    loop.steps(1)
    loop.clock.now += LATER
    loop.steps(2)
    assert loop.loop.snapshot.step == 0
    assert is_healthy(loop)


def test_a_person_who_waits_beside_paused_offline_work_is(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler()
    loop = paused(engine, LettersRunner())
    loop.submit(sequence("offline", offline=True))
    loop.steps(1)
    monkeypatch.setattr(engine, "plan_step", lambda now: None)
    loop.submit(sequence("person", arrived_at=1.0))
    loop.steps(1)
    loop.clock.now += LATER
    loop.steps(1)
    assert not is_healthy(loop)


def resumed(loop: SteppedLoop, engine: Scheduler) -> None:
    loop.loop.configure(
        Configuration(revision=2, limits=engine.limits, weights={}, guardrail_mode=Mode.MANUAL)
    )


def person(loop: SteppedLoop, engine: Scheduler) -> None:
    loop.submit(sequence("person", arrived_at=1.0))


@pytest.mark.parametrize("comes", [resumed, person])
def test_work_that_begins_to_move_after_a_pause_is_given_its_time(
    comes: Callable[[SteppedLoop, Scheduler], None],
) -> None:
    """And a step of it that hangs is noticed, though nothing was owed a moment before."""
    seen: list[bool] = []

    class Hanging(LettersRunner):
        def collect(self, in_flight: StepPlan) -> StepResult:
            seen.append(is_healthy(loop))
            loop.clock.now += LATER
            seen.append(is_healthy(loop))
            return super().collect(in_flight)

    engine = scheduler()
    loop = paused(engine, Hanging())
    loop.submit(sequence("offline", offline=True))
    loop.steps(1)
    loop.clock.now += LATER
    loop.steps(1)
    comes(loop, engine)
    loop.steps(1)
    assert seen == [True, False]
