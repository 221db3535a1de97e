"""One tenant floods the engine: what do others feel, what does fairness cost, how fair is it? Simulated.

Lengths and bursts are those of a public conversation trace, halved, on the GPU-like engine. Eight modest
tenants offer 5 % of capacity each, a flooder 20 times as much as one of them, and a long-context tenant
a few prompts above `long_context_threshold`. Beside ours: first come first served (the scheduler is told
of one tenant only) and static priority (weights of a million to one).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from engine.core.sequence import SequenceClass
from tests.benchmarks.scheduler.engines import (
    GPU_ENGINE,
    NO_TIMEOUT_MS,
    as_everyone,
    requests_per_second,
)
from tests.benchmarks.scheduler.parallel import simulate_all
from tests.benchmarks.scheduler.report import (
    Figure,
    at_least,
    at_most,
    plain,
    print_figures,
    print_table,
    progress,
)
from tests.benchmarks.scheduler.traces import TracedRequest, azure_conversations
from tests.benchmarks.scheduler.workloads import Scale, Sender, backlog, shared_trace
from tests.builders.simulator.requests import Request, quantile, token_gaps, waits_for_first_token
from tests.builders.simulator.service import Gap, ServiceMeter

ENGINE: Final = GPU_ENGINE.with_limits(waiting_timeout_ms=NO_TIMEOUT_MS)
SCALE: Final = Scale(divisor=2)
MODEST: Final = tuple(f"modest-{number}" for number in range(8))
MODEST_SHARE: Final = 0.05  # of capacity, each
FLOOD_FACTOR: Final = 20
LONG_SHARE: Final = 0.005  # of capacity, in requests; some 4 % in tokens
SECONDS: Final = 200.0
WARM_SECONDS: Final = 30.0
SEEDS: Final = (1, 2, 3)
WINDOW_SECONDS: Final = 60.0
WEIGHTS: Final = {"one": 1.0, "two": 2.0, "four": 4.0}

WITHOUT, OURS, FCFS, PRIORITY = "without the flooder", "ours", "first come first served", "static priority"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: who serves in which order, and which part of the trace is played."""

    policy: str
    seed: int
    capacity: float


@dataclass(frozen=True, kw_only=True)
class Felt:
    """What one run brought to whom."""

    job: Job
    victims_ttft: list[float]
    victims_itl: list[float]
    long_ttft: list[float]
    flooder_per_second: float
    tokens_per_second: float
    gaps: list[Gap]
    gap_bound: float


def run() -> list[Figure]:
    """Prints the tables and returns the figures."""
    trace = azure_conversations()
    progress("flood: capacity, first come first served")
    capacity = requests_per_second(ENGINE, _everyday(trace, 10_000))
    print(
        f"Capacity {capacity:.1f} requests/s, first come first served and never dry. Lengths of the trace "
        f"divided by {SCALE.divisor}; {SECONDS:.0f} simulated seconds, {len(SEEDS)} seeds."
    )
    progress("flood: victims under four policies")
    jobs = [
        Job(policy=policy, seed=seed, capacity=capacity)
        for policy, seed in product((WITHOUT, OURS, FCFS, PRIORITY), SEEDS)
    ]
    felt = simulate_all(_flooded, jobs)
    progress("flood: two backlogged tenants, and weights 1:2:4")
    backlogged = simulate_all(
        _two_backlogged, [Job(policy=each, seed=1, capacity=capacity) for each in (OURS, FCFS)]
    )
    figures = [*_victims(felt), *_gaps(felt, backlogged), _weighted(trace, capacity)]
    print_figures(figures)
    return figures


# --- what victims feel ---------------------------------------------------------------------------------


def _victims(felt: Sequence[Felt]) -> Iterator[Figure]:
    by_policy = {
        policy: [each for each in felt if each.job.policy == policy]
        for policy in (WITHOUT, OURS, FCFS, PRIORITY)
    }
    print_table(
        ("policy", "victims' TTFT p50", "p99", "p99 of each seed", "ITL p99", "long tenant's TTFT p99",
         "flooder served", "tokens/s"),
        [_policy_row(policy, runs) for policy, runs in by_policy.items()],
    )  # fmt: skip
    before, after = (_victims_p99(by_policy[policy]) for policy in (WITHOUT, OURS))
    one_step_more = before + ENGINE.itl_guard_seconds
    yield at_most(
        "victims' p99 TTFT with the flooder", after * 1e3, max(1.5 * before, one_step_more) * 1e3, "ms",
        digits=0,
    )  # fmt: skip
    yield plain("  as a multiple of that without the flooder", after / before)
    ours, fcfs = (_mean(each.tokens_per_second for each in by_policy[policy]) for policy in (OURS, FCFS))
    yield at_least("total throughput, of first come first served's", 100 * ours / fcfs, 95, "%", digits=1)


def _policy_row(policy: str, runs: Sequence[Felt]) -> tuple[str, ...]:
    ttft = [seconds for each in runs for seconds in each.victims_ttft]
    long_ttft = [seconds for each in runs for seconds in each.long_ttft]
    return (
        policy,
        _ms(quantile(ttft, 0.5)),
        _ms(quantile(ttft, 0.99)),
        " ".join(f"{quantile(each.victims_ttft, 0.99) * 1e3:.0f}" for each in runs),
        _ms(quantile([seconds for each in runs for seconds in each.victims_itl], 0.99)),
        _ms(quantile(long_ttft, 0.99)),
        f"{_mean(each.flooder_per_second for each in runs):.1f}/s",
        f"{_mean(each.tokens_per_second for each in runs):,.0f}",
    )


def _victims_p99(runs: Sequence[Felt]) -> float:
    return quantile([seconds for each in runs for seconds in each.victims_ttft], 0.99)


def _flooded(job: Job) -> Felt:
    senders = [*_modest(job.capacity), _long(job.capacity)]
    if job.policy != WITHOUT:
        senders.append(
            Sender(tenant="flooder", requests_per_second=FLOOD_FACTOR * MODEST_SHARE * job.capacity)
        )
    return _felt(job, shared_trace(azure_conversations(), senders, SCALE, seconds=SECONDS, seed=job.seed))


def _felt(job: Job, requests: Sequence[Request]) -> Felt:
    outcome = ENGINE.run([_told(job.policy, request) for request in requests], until=SECONDS)
    record, meter = outcome.record, outcome.meter
    warm = [served for served in record.requests if served.arrived_at >= WARM_SECONDS]
    victims = [served for served in warm if served.tenant in MODEST]
    served_of_flooder = [each for each in record.of("flooder") if (each.ended_at or 0.0) >= WARM_SECONDS]
    return Felt(
        job=job,
        victims_ttft=waits_for_first_token(victims, record.ended_at),
        victims_itl=token_gaps(victims),
        long_ttft=waits_for_first_token((each for each in warm if each.tenant == "long"), record.ended_at),
        flooder_per_second=len(served_of_flooder) / (SECONDS - WARM_SECONDS),
        tokens_per_second=record.tokens_per_second(WARM_SECONDS, SECONDS),
        gaps=meter.gaps(),
        gap_bound=_gap_bound(outcome.scheduler.quantum, meter),
    )


def _told(policy: str, request: Request) -> Request:
    """What the scheduler is told of a request under a policy."""
    if policy == FCFS:
        return as_everyone(request)
    if policy == PRIORITY and request.tenant in MODEST:
        return replace(request, weight=1e6)
    return request


# --- how fair ------------------------------------------------------------------------------------------


def _gaps(felt: Sequence[Felt], backlogged: Sequence[Felt]) -> Iterator[Figure]:
    """Over all runs of ours; first come first served shows what it is to have no bound."""
    ours = [each for each in (*felt, *backlogged) if each.job.policy == OURS]
    run, widest = max(
        ((each, gap) for each in ours for gap in each.gaps),
        key=lambda pair: pair[1].widest / pair[0].gap_bound,
    )
    yield at_most(
        f"service gap of {' and '.join(widest.tenants)}, both waiting for {widest.seconds:.0f} s",
        widest.widest, run.gap_bound, "tokens", digits=0,
    )  # fmt: skip
    both = next(each for each in backlogged if each.job.policy == OURS)
    yield plain("  of two floods", max(gap.widest for gap in both.gaps), "tokens", digits=0)
    fcfs = next(each for each in backlogged if each.job.policy == FCFS)
    broken = max(gap.widest for gap in fcfs.gaps)
    yield Figure(
        name="  of two floods, first come first served",
        value=f"{broken:,.0f} tokens",
        target=f"{broken / fcfs.gap_bound:.1f} times its bound",
    )


def _two_backlogged(job: Job) -> Felt:
    """Two floods beside the modest tenants: everyday requests; long prompts with short answers."""
    senders = [
        *_modest(job.capacity),
        Sender(tenant="flooder", requests_per_second=job.capacity),
        Sender(tenant="reader", requests_per_second=job.capacity, lengths=_reading),
    ]
    return _felt(job, shared_trace(azure_conversations(), senders, SCALE, seconds=SECONDS, seed=job.seed))


def _gap_bound(quantum: float, meter: ServiceMeter) -> float:
    return quantum + 2 * meter.largest_remaining_output


def _weighted(trace: Sequence[TracedRequest], capacity: float) -> Figure:
    """Three tenants that always wait, with weights 1:2:4."""
    num_each = round(capacity * SECONDS)
    requests = [
        replace(request, tenant=tenant, weight=weight)
        for request in _everyday(trace, num_each)
        for tenant, weight in WEIGHTS.items()
    ]
    meter = ENGINE.run(requests, until=SECONDS, weights=WEIGHTS).meter
    return at_most(
        f"weights 1:2:4, worst ratio off in any {WINDOW_SECONDS:.0f} s window",
        100 * max(_unevenness(meter)), 5, "%",
    )  # fmt: skip


def _unevenness(meter: ServiceMeter) -> Iterator[float]:
    """For every window: how much more weighted service the best served tenant had than the worst served."""
    ends = iter(meter.samples)
    ended_at, until = next(ends)
    for started_at, since in meter.samples:
        while ended_at - started_at < WINDOW_SECONDS:
            ended_at, until = next(ends, (float("inf"), {}))
        if not until:
            return
        served = [until[tenant] - since.get(tenant, 0.0) for tenant in WEIGHTS]
        yield max(served) / min(served) - 1


# --- who sends what ------------------------------------------------------------------------------------


def _everyday(trace: Sequence[TracedRequest], count: int) -> list[Request]:
    return backlog(trace, count, SCALE, tenant="everyone", sequence_class=SequenceClass.INTERACTIVE)


def _modest(capacity: float) -> list[Sender]:
    return [Sender(tenant=tenant, requests_per_second=MODEST_SHARE * capacity) for tenant in MODEST]


def _long(capacity: float) -> Sender:
    return Sender(tenant="long", requests_per_second=LONG_SHARE * capacity, lengths=_long_context)


def _long_context(row: TracedRequest) -> tuple[int, int]:
    """A prompt above the threshold for long ones, below the context's length."""
    _, output = SCALE.lengths(row)
    return 4200 + row.num_prompt_tokens % 2800, output


def _reading(row: TracedRequest) -> tuple[int, int]:
    prompt, output = SCALE.lengths(row)
    return min(4 * prompt, ENGINE.limits.long_context_threshold), max(2, output // 4)


def _mean(values: Iterator[float]) -> float:
    several = list(values)
    return sum(several) / len(several)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"
