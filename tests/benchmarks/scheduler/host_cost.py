"""What the scheduler itself costs: wall-clock time of deciding one step, in steady state with churn.

256 sequences run, 1,000 or 10,000 wait, over 50 tenants, with prefix caching on. What the model would
compute is not counted.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.outcome import Ended
from engine.core.scheduler import Scheduler
from engine.core.sequence import SequenceClass
from engine.core.slo import SloTargets
from tests.benchmarks.scheduler.engines import BLOCK_SIZE, MANY, NO_TIMEOUT_MS
from tests.benchmarks.scheduler.report import Figure, at_most, plain, print_figures, progress
from tests.builders.simulator.laws import GPU_LIKE
from tests.builders.simulator.models import SimulatedMachine
from tests.builders.simulator.requests import VOCAB_SIZE, Request, quantile

NUM_TENANTS: Final = 50
NUM_RUNNING: Final = 256
NUM_WARM_STEPS: Final = 400
NUM_STEPS: Final = 300
NUM_RUNS: Final = 3
NUM_BLOCKS: Final = 16_384
TARGETS_MS: Final = {1_000: 2.0, 10_000: 3.0}


class Cost(NamedTuple):
    """Milliseconds of one step: planning and applying; and with time limits and learning from the step."""

    plan_and_apply: float
    everything: float


def run() -> list[Figure]:
    """Prints the table and returns the figures."""
    figures = [figure for num_waiting in TARGETS_MS for figure in _figures(num_waiting)]
    print_figures(figures)
    return figures


def _figures(num_waiting: int) -> Iterator[Figure]:
    runs: list[list[Cost]] = []
    for number in range(NUM_RUNS):
        progress(f"host cost: {num_waiting:,} waiting, run {number + 1} of {NUM_RUNS}")
        runs.append(_Churn(num_waiting).measured())
    target = TARGETS_MS[num_waiting]
    plan_and_apply = [[cost.plan_and_apply for cost in costs] for costs in runs]
    everything = [[cost.everything for cost in costs] for costs in runs]
    yield at_most(
        f"{num_waiting:,} waiting: plan and apply, median", _typical(plan_and_apply, 0.5), target, "ms"
    )
    yield plain("  p95", _typical(plan_and_apply, 0.95), "ms")
    yield at_most("  with expire and observe, median", _typical(everything, 0.5), target, "ms")
    yield plain("  p95", _typical(everything, 0.95), "ms")


def _typical(runs: list[list[float]], share: float) -> float:
    """The median over runs of a quantile within each."""
    return statistics.median(quantile(costs, share) for costs in runs)


class _Churn:
    """Keeps as many running and waiting as are wanted: for every sequence that ends another one comes."""

    def __init__(self, num_waiting: int) -> None:
        self._num_waiting = num_waiting
        self._num_submitted = 0
        self._scheduler = Scheduler(
            limits=Limits(max_num_seqs=NUM_RUNNING, waiting_timeout_ms=NO_TIMEOUT_MS),
            kv_cache=KvCache(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE),
            vocab_size=VOCAB_SIZE,
            itl_guard_seconds=SloTargets().itl_guard_seconds,
            max_num_waiting=MANY,
            max_num_waiting_per_tenant=MANY,
        )
        self._machine = SimulatedMachine(GPU_LIKE, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)

    def measured(self) -> list[Cost]:
        """The costs of NUM_STEPS steps, once the batch is full and its members are of all ages."""
        costs = [self._step() for _ in range(NUM_WARM_STEPS + NUM_STEPS)]
        interactive = SequenceClass.INTERACTIVE
        num_running = self._scheduler.num_running(interactive)
        assert num_running > 0.9 * NUM_RUNNING, f"only {num_running} run"
        assert self._scheduler.num_waiting(interactive) > 0.9 * self._num_waiting
        return costs[NUM_WARM_STEPS:]

    def _step(self) -> Cost:
        scheduler, machine = self._scheduler, self._machine
        now = machine.now()
        while scheduler.num_waiting(SequenceClass.INTERACTIVE) < self._num_waiting:
            self._submit(now)
        begun = time.perf_counter()
        scheduler.expire(now)
        expired = time.perf_counter()
        plan = scheduler.plan_step(now)
        planned = time.perf_counter()
        assert plan is not None
        result = machine.compute(plan)
        computed = time.perf_counter()
        scheduler.observe(plan, machine.now() - now)
        observed = time.perf_counter()
        outcomes = scheduler.apply(plan, result, machine.now())
        applied = time.perf_counter()
        for outcome in outcomes:
            if isinstance(outcome, Ended):
                machine.forget(outcome.sequence.id)
        return Cost(
            plan_and_apply=1e3 * (planned - expired + applied - observed),
            everything=1e3 * (planned - begun + applied - computed),
        )

    def _submit(self, now: float) -> None:
        number = self._num_submitted
        self._num_submitted += 1
        tenant = f"tenant-{number * 7919 % NUM_TENANTS}"
        request = Request(
            at=now,
            tenant=tenant,
            num_prompt_tokens=100 + number * 37 % 400,
            num_output_tokens=50 + number * 61 % 200,
            max_tokens=512,
            cache_namespace=tenant.encode(),
        )
        sequence = request.sequence(f"r{number}", owner=None)
        assert self._scheduler.submit(sequence, now) is None
        self._machine.expect(sequence.id, request.num_prompt_tokens + request.num_output_tokens)
