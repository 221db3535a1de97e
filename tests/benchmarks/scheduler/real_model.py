"""The default model in this process: the engine's own parts, without its loop, wire or gateway."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from deploy.models import DEFAULT_MODEL, find
from engine.app import Parts, assemble
from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.scheduler import Scheduler
from engine.core.step import StepPlan, StepResult
from engine.settings import EngineSection, EngineSettings, SchedulerSection, SloSection
from tests.benchmarks.scheduler.engines import MANY, NO_TIMEOUT_MS
from tests.builders.simulator.laws import StepTimeLaw, StepWork, fitted, work_of
from tests.builders.simulator.models import Machine, RealMachine
from tests.builders.simulator.requests import Request
from tests.builders.simulator.simulation import Record, Simulation

CACHE_DIR: Final = Path(__file__).parents[3] / ".cache"
KV_CACHE_GIB: Final = 1.0
NO_STOP: Final[frozenset[int]] = frozenset()
_CALIBRATION_LENGTHS: Final = ((30, 24), (100, 16), (250, 12), (60, 40), (16, 60), (180, 8))
_CALIBRATION_ROUNDS: Final = 5


@dataclass(frozen=True, kw_only=True)
class RealEngine:
    """A loaded model with its limits; timeouts are off, since these runs are about other things."""

    parts: Parts
    limits: Limits
    block_size: int
    itl_guard_seconds: float

    def run(self, arrivals: Iterable[Request], *, machine: Machine | None = None, until: float) -> Record:
        """Serves `arrivals` from an empty cache."""
        scheduler = self.scheduler()
        return Simulation(scheduler, machine or self.machine(), arrivals).run(until)

    def scheduler(self) -> Scheduler:
        """A new scheduler with an empty cache."""
        return Scheduler(
            limits=self.limits,
            kv_cache=KvCache(num_blocks=self.parts.num_blocks, block_size=self.block_size),
            vocab_size=self.parts.model.vocab_size,
            itl_guard_seconds=self.itl_guard_seconds,
            max_num_waiting=MANY,
            max_num_waiting_per_tenant=MANY,
        )

    def machine(self) -> RealMachine:
        """The model under the machine's clock."""
        return RealMachine(self.parts.runner)

    def prompt(self, num_tokens: int, *, seed: object) -> tuple[int, ...]:
        """Any text of that length."""
        generator = random.Random(f"prompt {seed}")
        return tuple(generator.randrange(100, self.parts.model.vocab_size) for _ in range(num_tokens))

    def with_limits(self, **limits: object) -> "RealEngine":
        """The same engine with some limits changed."""
        return replace(self, limits=replace(self.limits, **limits))  # type: ignore[arg-type]


@cache
def real_engine() -> RealEngine:
    """The default model on this machine as `sluice serve` starts it, loaded once; fetched if need be."""
    settings = EngineSettings(
        engine=EngineSection(kv_cache_gib=KV_CACHE_GIB),
        scheduler=SchedulerSection(waiting_timeout_ms=NO_TIMEOUT_MS),
        slo=SloSection(),
        shared_secret="benchmark",
    )
    parts = assemble(settings, model_name=DEFAULT_MODEL, directory=find(DEFAULT_MODEL, CACHE_DIR))
    return RealEngine(
        parts=parts,
        limits=parts.limits,
        block_size=settings.engine.kv_block_size,
        itl_guard_seconds=settings.slo.targets().itl_guard_seconds,
    )


class WatchedMachine:
    """Passes everything on and remembers what each step computed and how long it took."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.steps: list[tuple[StepWork, float]] = []
        self.now, self.skip_to = machine.now, machine.skip_to
        self.expect, self.forget = machine.expect, machine.forget

    def compute(self, plan: StepPlan) -> StepResult:
        """Computes and notes."""
        begun = self.now()
        result = self._machine.compute(plan)
        self.steps.append((work_of(plan), self.now() - begun))
        return result


def measured_law(engine: RealEngine) -> StepTimeLaw:
    """The step-time law of the model on this machine, from half a minute of mixed steps."""
    machine = WatchedMachine(engine.machine())
    lengths = _CALIBRATION_LENGTHS * _CALIBRATION_ROUNDS
    arrivals = [
        Request(
            at=0.4 * number,
            tenant="calibration",
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            max_tokens=num_output_tokens,
            token_ids=engine.prompt(num_prompt_tokens, seed=number),
            stop_token_ids=NO_STOP,
        )
        for number, (num_prompt_tokens, num_output_tokens) in enumerate(lengths)
    ]
    engine.run(arrivals, machine=machine, until=float("inf"))
    return fitted(machine.steps)
