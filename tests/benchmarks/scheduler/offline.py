"""Offline work beside people: how much is harvested, do they notice? Simulated twice, and for real.

Interactive load at half of capacity, alone and beside an offline backlog that never ends. On the GPU-like
engine capacity is what it serves at most. On the CPU, where a batch of that size breaks `[slo]`, it is the
highest load at which interactive work alone keeps `[slo]`, found by bisection in the simulator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.core.sequence import SequenceClass
from engine.core.slo import SloTargets
from tests.benchmarks.scheduler.engines import (
    CPU_ENGINE,
    GPU_ENGINE,
    NO_TIMEOUT_MS,
    SimulatedEngine,
    requests_per_second,
)
from tests.benchmarks.scheduler.parallel import simulate_all
from tests.benchmarks.scheduler.real_model import NO_STOP, RealEngine, measured_law, real_engine
from tests.benchmarks.scheduler.report import (
    Figure,
    at_least,
    at_most,
    print_figures,
    print_table,
    progress,
)
from tests.benchmarks.scheduler.traces import TracedRequest, azure_conversations
from tests.benchmarks.scheduler.workloads import Scale, Sender, backlog, shared_trace
from tests.builders.simulator.requests import Request, quantile, token_gaps, waits_for_first_token
from tests.builders.simulator.simulation import Record

PEOPLE: Final = tuple(f"people-{number}" for number in range(4))
GPU: Final = GPU_ENGINE.with_limits(waiting_timeout_ms=NO_TIMEOUT_MS)
CPU: Final = CPU_ENGINE.with_limits(waiting_timeout_ms=NO_TIMEOUT_MS)
GPU_SCALE: Final = Scale(divisor=2)
CPU_SCALE: Final = Scale(divisor=16, max_tokens=64)
LOAD: Final = 0.5
WARM_SECONDS: Final = 20.0
SEEDS: Final = (1, 2, 3)
GPU_SECONDS: Final = 200.0
CPU_SECONDS: Final = 400.0
REAL_SECONDS: Final = 60.0
NUM_BISECTIONS: Final = 7
SLO: Final = SloTargets()


@dataclass(frozen=True, kw_only=True)
class Felt:
    """What people met, and what the engine did, over one or more runs."""

    ttft: list[float]
    itl: list[float]
    queue_wait: list[float]
    tokens_per_second: float

    def keeps_slo(self) -> bool:
        """Whether the promises to people held."""
        return all(value <= target for _, value, target in self.against_slo())

    def against_slo(self) -> Iterator[tuple[str, float, float]]:
        """(what, measured, promised), in milliseconds."""
        yield "TTFT p95", quantile(self.ttft, 0.95) * 1e3, SLO.ttft_p95_ms
        yield "ITL p95", quantile(self.itl, 0.95) * 1e3, SLO.itl_p95_ms
        yield "queue wait p95", quantile(self.queue_wait, 0.95) * 1e3, SLO.queue_wait_p95_ms


@dataclass(frozen=True, kw_only=True)
class Job:
    """One simulated run."""

    engine: SimulatedEngine
    scale: Scale
    people_per_second: float
    seconds: float
    seed: int
    num_offline: int = 0


def run() -> list[Figure]:
    """Prints the tables and returns the figures."""
    trace = azure_conversations()
    figures = [*_on_gpu(trace), *_on_cpu(trace), *_on_real_model(trace)]
    print_figures(figures)
    return figures


def _on_gpu(trace: Sequence[TracedRequest]) -> Iterator[Figure]:
    progress("offline: capacity of the GPU-like engine")
    capacity = requests_per_second(GPU, _lengths(trace, GPU_SCALE, 8000))
    job = Job(engine=GPU, scale=GPU_SCALE, people_per_second=LOAD * capacity, seconds=GPU_SECONDS, seed=0)
    progress("offline: simulated, GPU-like")
    alone, beside = _alone_and_beside(job, num_offline=round(2 * capacity * GPU_SECONDS))
    _print(f"GPU-like, simulated: {LOAD:.0%} of {capacity:.1f} requests/s, the most it serves", alone, beside)
    yield from _times("GPU-like", alone, beside, limit=1.1)
    gained = beside.tokens_per_second / alone.tokens_per_second
    yield at_least("GPU-like: total throughput, of interactive alone", gained, 1.5, "times")


def _on_cpu(trace: Sequence[TracedRequest]) -> Iterator[Figure]:
    progress("offline: capacity of the CPU-like engine within [slo]")
    job = Job(engine=CPU, scale=CPU_SCALE, people_per_second=0.0, seconds=CPU_SECONDS, seed=0)
    capacity = _capacity_within_slo(job, requests_per_second(CPU, _lengths(trace, CPU_SCALE, 4000)))
    progress("offline: simulated, CPU-like")
    job = replace(job, people_per_second=LOAD * capacity)
    alone, beside = _alone_and_beside(job, num_offline=round(20 * CPU_SECONDS))
    _print(f"CPU-like, simulated: {LOAD:.0%} of {capacity:.2f} requests/s, the most in [slo]", alone, beside)
    yield from _inside_slo("CPU-like", beside)
    yield from _times("CPU-like", alone, beside, limit=1.5)


def _on_real_model(trace: Sequence[TracedRequest]) -> Iterator[Figure]:
    progress("offline: step times of the real model")
    real = real_engine()
    law = measured_law(real)
    print(
        f"The real model's steps here: {law.step_seconds * 1e3:.1f} ms + "
        f"{law.prefill_token_seconds * 1e3:.2f} ms a prompt token + "
        f"{law.decode_row_seconds * 1e3:.2f} ms a decoding row + "
        f"{law.context_token_seconds * 1e6:.2f} us a context token"
    )
    simulated = SimulatedEngine(
        law=law, limits=real.limits, num_blocks=real.parts.num_blocks, block_size=real.block_size
    )
    job = Job(engine=simulated, scale=CPU_SCALE, people_per_second=0.0, seconds=CPU_SECONDS, seed=0)
    capacity = _capacity_within_slo(job, requests_per_second(simulated, _lengths(trace, CPU_SCALE, 4000)))
    job = replace(job, people_per_second=LOAD * capacity, seconds=REAL_SECONDS, seed=1)
    alone, beside = (
        _felt(_served_by(real, replace(job, num_offline=num_offline)), REAL_SECONDS)
        for num_offline in (0, round(20 * REAL_SECONDS))
    )
    _print(f"Real model: {LOAD:.0%} of {capacity:.2f} requests/s, simulated with its law", alone, beside)
    yield from _inside_slo("real model", beside)
    yield from _times("real model", alone, beside, limit=1.5)


# --- figures -------------------------------------------------------------------------------------------


def _print(title: str, alone: Felt, beside: Felt) -> None:
    print(title)
    print_table(
        (
            "interactive",
            "TTFT p50",
            "p95",
            "p99",
            "ITL p50",
            "p95",
            "p99",
            "queue wait p95",
            "tokens/s in all",
        ),
        [_row("alone", alone), _row("beside offline", beside)],
    )


def _row(who: str, felt: Felt) -> tuple[str, ...]:
    shares = (0.5, 0.95, 0.99)
    times = [quantile(values, share) * 1e3 for values in (felt.ttft, felt.itl) for share in shares]
    waited = quantile(felt.queue_wait, 0.95) * 1e3
    return (who, *(f"{time:,.1f} ms" for time in (*times, waited)), f"{felt.tokens_per_second:,.0f}")


def _times(who: str, alone: Felt, beside: Felt, *, limit: float) -> Iterator[Figure]:
    for what, before, after in (("TTFT", alone.ttft, beside.ttft), ("ITL", alone.itl, beside.itl)):
        times = quantile(after, 0.99) / quantile(before, 0.99)
        yield at_most(f"{who}: interactive p99 {what}, of that without offline", times, limit, "times")


def _inside_slo(who: str, felt: Felt) -> Iterator[Figure]:
    for what, measured, promised in felt.against_slo():
        yield at_most(f"{who}: interactive {what} beside offline", measured, promised, "ms", digits=0)


# --- runs ----------------------------------------------------------------------------------------------


def _alone_and_beside(job: Job, *, num_offline: int) -> tuple[Felt, Felt]:
    jobs = [replace(job, seed=seed, num_offline=count) for count in (0, num_offline) for seed in SEEDS]
    records = simulate_all(_simulated, jobs)
    return _pooled(records[: len(SEEDS)]), _pooled(records[len(SEEDS) :])


def _capacity_within_slo(job: Job, most: float) -> float:
    """The highest rate of interactive requests that keeps `[slo]`, between nothing and `most`."""
    low, high = 0.0, most
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) / 2
        jobs = [replace(job, people_per_second=middle, seed=seed) for seed in SEEDS]
        if _pooled(simulate_all(_simulated, jobs)).keeps_slo():
            low = middle
        else:
            high = middle
    return low


def _simulated(job: Job) -> Felt:
    return _felt(job.engine.run(_arrivals(job), until=job.seconds).record, job.seconds)


def _served_by(real: RealEngine, job: Job) -> Record:
    progress(f"offline: the real model, {'beside offline' if job.num_offline else 'interactive alone'}")
    return real.run(
        [_real(real, number, each) for number, each in enumerate(_arrivals(job))], until=job.seconds
    )


def _real(real: RealEngine, number: int, request: Request) -> Request:
    return replace(
        request,
        max_tokens=request.num_output_tokens,
        token_ids=real.prompt(request.num_prompt_tokens, seed=number),
        stop_token_ids=NO_STOP,
    )


def _arrivals(job: Job) -> list[Request]:
    trace = azure_conversations()
    each = job.people_per_second / len(PEOPLE)
    senders = [Sender(tenant=tenant, requests_per_second=each) for tenant in PEOPLE]
    people = shared_trace(trace, senders, job.scale, seconds=job.seconds, seed=job.seed)
    return [*_offline(trace, job), *people]


def _offline(trace: Sequence[TracedRequest], job: Job) -> list[Request]:
    first = 7919 * job.seed % len(trace)  # not the rows that people send
    rows = [*trace[first:], *trace[:first]]
    return backlog(rows, job.num_offline, job.scale, tenant="batch", sequence_class=SequenceClass.OFFLINE)


def _lengths(trace: Sequence[TracedRequest], scale: Scale, count: int) -> list[Request]:
    return backlog(trace, count, scale, tenant="everyone", sequence_class=SequenceClass.INTERACTIVE)


def _felt(record: Record, seconds: float) -> Felt:
    people = [each for each in record.interactive() if each.arrived_at >= WARM_SECONDS]
    return Felt(
        ttft=waits_for_first_token(people, record.ended_at),
        itl=token_gaps(people),
        queue_wait=[each.queue_wait for each in people if each.queue_wait is not None],
        tokens_per_second=record.tokens_per_second(WARM_SECONDS, seconds),
    )


def _pooled(runs: Sequence[Felt]) -> Felt:
    return Felt(
        ttft=[each for felt in runs for each in felt.ttft],
        itl=[each for felt in runs for each in felt.itl],
        queue_wait=[each for felt in runs for each in felt.queue_wait],
        tokens_per_second=sum(felt.tokens_per_second for felt in runs) / len(runs),
    )
