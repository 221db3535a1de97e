"""Simulated engines of two sizes, and how much each can take."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.scheduler import Scheduler
from engine.core.slo import SloTargets
from engine.settings import CPU_LIMITS
from tests.builders.simulator.laws import CPU_LIKE, GPU_CACHE_TOKENS, GPU_LIKE, StepTimeLaw
from tests.builders.simulator.models import SimulatedMachine
from tests.builders.simulator.requests import VOCAB_SIZE, Request
from tests.builders.simulator.service import ServiceMeter
from tests.builders.simulator.simulation import Controller, Record, Simulation

BLOCK_SIZE = 32  # [engine] kv_block_size
NO_TIMEOUT_MS = 3_600_000
MANY = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulated run brought."""

    record: Record
    meter: ServiceMeter
    scheduler: Scheduler


@dataclass(frozen=True, kw_only=True)
class SimulatedEngine:
    """Limits, a cache and a law of step times. Each run starts empty."""

    law: StepTimeLaw
    limits: Limits
    num_blocks: int
    block_size: int = BLOCK_SIZE
    itl_guard_seconds: float = SloTargets().itl_guard_seconds
    max_num_waiting: int = MANY
    max_num_waiting_per_tenant: int = MANY

    def scheduler(self) -> Scheduler:
        """A new scheduler with an empty cache."""
        return Scheduler(
            limits=self.limits,
            kv_cache=KvCache(num_blocks=self.num_blocks, block_size=self.block_size),
            vocab_size=VOCAB_SIZE,
            itl_guard_seconds=self.itl_guard_seconds,
            max_num_waiting=self.max_num_waiting,
            max_num_waiting_per_tenant=self.max_num_waiting_per_tenant,
        )

    def run(
        self,
        arrivals: Iterable[Request],
        *,
        until: float,
        weights: Mapping[str, float] | None = None,
        controller: Callable[[Scheduler], Controller] | None = None,
    ) -> Outcome:
        """Serves `arrivals` for `until` seconds, or until all is over."""
        scheduler, meter = self.scheduler(), ServiceMeter(weights=weights or {})
        simulation = Simulation(
            scheduler,
            SimulatedMachine(self.law, num_blocks=self.num_blocks, block_size=self.block_size),
            arrivals,
            meter=meter,
            controller=None if controller is None else controller(scheduler),
        )
        return Outcome(record=simulation.run(until), meter=meter, scheduler=scheduler)

    def with_limits(self, **limits: object) -> "SimulatedEngine":
        """The same engine with some limits changed."""
        return replace(self, limits=replace(self.limits, **limits))  # type: ignore[arg-type]


GPU_ENGINE = SimulatedEngine(law=GPU_LIKE, limits=Limits(), num_blocks=GPU_CACHE_TOKENS // BLOCK_SIZE)

CPU_ENGINE = SimulatedEngine(
    law=CPU_LIKE,
    limits=Limits(**CPU_LIMITS),  # type: ignore[arg-type]
    num_blocks=2_800,  # 4 GiB of the default model's cache: 46 kB a token
)


def as_everyone(request: Request) -> Request:
    """The request as a scheduler without tenants sees it: first come, first served."""
    return replace(request, known_as="everyone")


def requests_per_second(
    engine: SimulatedEngine, lengths: Iterable[Request], *, seconds: float = 120
) -> float:
    """What `engine` serves of such requests when it never runs dry, first come, first served.

    The first quarter, in which the batch fills, does not count.
    """
    patient = engine.with_limits(waiting_timeout_ms=NO_TIMEOUT_MS)
    backlog = [replace(as_everyone(request), at=0.0) for request in lengths]
    record = patient.run(backlog, until=seconds).record
    assert record.ended_at >= seconds, "the backlog ran dry"
    start = seconds / 4
    num_ended = sum(served.ended_at is not None and served.ended_at >= start for served in record.requests)
    return num_ended / (record.ended_at - start)
