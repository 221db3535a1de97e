"""An engine's loop without a thread: tests call `step` themselves, on a clock that they move."""

from dataclasses import dataclass, field

from engine.core.outcome import Broken, Ended, Outcome, Refused, Sampled
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.slo import SloMonitor, SloTargets
from engine.core.step import StepPlan
from engine.loop import EngineLoop
from engine.runner.runner import Runner
from engine.runner.scripted_runner import ScriptedRunner, letters
from engine.telemetry import Telemetry
from tests.builders.sequences import FIRST_LETTER


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class LettersRunner(ScriptedRunner):
    """Answers as `tests.builders.sequences.compute` does; tests override `collect` to make trouble."""

    def __init__(self) -> None:
        super().__init__(letters(FIRST_LETTER, 26))
        self.plans: list[StepPlan] = []

    def launch(self, plan: StepPlan) -> StepPlan:
        self.plans.append(plan)
        return plan


@dataclass
class SteppedLoop:
    """A loop and all that it published, by sequence."""

    loop: EngineLoop
    clock: Clock
    outcomes: list[Outcome] = field(default_factory=list)

    def submit(self, *sequences: Sequence) -> None:
        """Hands sequences in."""
        for sequence in sequences:
            self.loop.submit(sequence)

    def steps(self, count: int) -> None:
        """Runs so many rounds."""
        for _ in range(count):
            self.loop.step()

    def run_until_idle(self, max_steps: int = 1000) -> None:
        """Runs until nothing is left to do."""
        for _ in range(max_steps):
            self.loop.step()
            if not self.loop.progress.has_work:
                return
        raise AssertionError(f"still busy after {max_steps} steps")

    def last_of(self, id: str) -> Ended | Refused | Broken:
        """How a sequence ended; there must be exactly one end."""
        (end,) = [
            each
            for each in self.outcomes
            if each.sequence.id == id and isinstance(each, Ended | Refused | Broken)
        ]
        return end

    def output_of(self, id: str) -> list[int]:
        """All tokens published for a sequence."""
        tokens = [
            each.token_ids for each in self.outcomes if each.sequence.id == id and isinstance(each, Sampled)
        ]
        return [token for some in tokens for token in some]


def stepped_loop(scheduler: Scheduler, runner: Runner) -> SteppedLoop:
    """A loop over `scheduler` and `runner` that no thread runs."""
    clock = Clock()
    outcomes: list[Outcome] = []
    loop = EngineLoop(
        scheduler=scheduler,
        runner=runner,
        telemetry=Telemetry(SloMonitor(SloTargets(), now=0.0)),
        publish=lambda step, brought: outcomes.extend(brought),
        on_crash=lambda error: None,
        clock=clock,
    )
    return SteppedLoop(loop, clock, outcomes)
