"""A spike to three times capacity: do the guardrails act, keep others served, and let go again? Simulated.

Eight modest tenants offer 5 % of capacity each all along, beside an offline backlog and a few long prompts.
For a minute two others send what makes it three times capacity.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from engine.core.guardrails import Move, Rung
from engine.core.outcome import RefusalReason
from engine.core.scheduler import Scheduler
from engine.core.sequence import SequenceClass
from engine.core.slo import SloTargets
from tests.benchmarks.scheduler.engines import GPU_ENGINE, NO_TIMEOUT_MS, requests_per_second
from tests.benchmarks.scheduler.report import (
    Figure,
    at_least,
    at_most,
    print_figures,
    print_table,
    progress,
    sparkline,
)
from tests.benchmarks.scheduler.traces import TracedRequest, azure_conversations
from tests.benchmarks.scheduler.workloads import Scale, Sender, backlog, shared_trace
from tests.builders.simulator.guarded import GuardedEngine
from tests.builders.simulator.requests import Request, Served, quantile, token_gaps, waits_for_first_token

SCALE: Final = Scale(divisor=2)
SLO: Final = SloTargets()
MODEST: Final = tuple(f"modest-{number}" for number in range(8))
SURGING: Final = ("surge-0", "surge-1")
MODEST_SHARE: Final = 0.05  # of capacity, each
LONG_SHARE: Final = 0.005
SPIKE_FACTOR: Final = 3.0
SPIKE_STARTS, SPIKE_ENDS, SECONDS = 60.0, 120.0, 240.0
RECOVERY_SECONDS: Final = 30.0
CLOSED_SECONDS: Final = 30.0
PICTURE_SECONDS: Final = 3.0
TIMED_OUT: Final = RefusalReason.WAITING_TIMEOUT.value


def run() -> list[Figure]:
    """Prints moves, picture and table, and returns the figures."""
    trace = azure_conversations()
    progress("spike: capacity, then four minutes with a spike in the second")
    patient = GPU_ENGINE.with_limits(waiting_timeout_ms=NO_TIMEOUT_MS)
    capacity = requests_per_second(patient, _everyday(trace, 10_000))
    guards: list[GuardedEngine] = []

    def guarded(scheduler: Scheduler) -> GuardedEngine:
        guards.append(GuardedEngine(scheduler, SLO))
        return guards[0]

    record = GPU_ENGINE.run(_arrivals(trace, capacity), until=SECONDS, controller=guarded).record
    guard = guards[0]
    _print_moves(guard.moves)
    _print_picture(guard, record.requests, capacity)
    _print_ends(record.requests)
    figures = list(_figures(guard, [each for each in record.requests if each.tenant in MODEST]))
    print_figures(figures)
    return figures


def _figures(guard: GuardedEngine, modest: Sequence[Served]) -> Iterator[Figure]:
    during = [each for each in modest if SPIKE_STARTS <= each.arrived_at < SPIKE_ENDS]
    taken = [each for each in during if each.refusal is None or each.end == TIMED_OUT]
    climbed = [move for move in guard.moves if move.to_level > move.from_level]
    yield at_least("moves up during the spike", len(climbed), 1, digits=0)
    for name, values, target in (
        ("TTFT", waits_for_first_token(taken, SECONDS), SLO.ttft_p95_ms),
        ("ITL", token_gaps(during), SLO.itl_p95_ms),
        (
            "queue wait",
            [each.queue_wait for each in during if each.queue_wait is not None],
            SLO.queue_wait_p95_ms,
        ),
    ):
        yield at_most(
            f"modest tenants' p95 {name} in the spike", quantile(values, 0.95) * 1e3, target, "ms", digits=0
        )
    refused = sum(each.refusal is not None for each in during)
    yield at_most(
        "modest tenants' requests refused in the spike", 100 * refused / len(during),
        100 * SLO.admission_reject_rate_max, "%",
    )  # fmt: skip
    yield at_most(
        "at level 0 again, after the spike's end", _recovered_after(guard), RECOVERY_SECONDS, "s", digits=0
    )
    yield at_most(
        f"rungs entered within {CLOSED_SECONDS:.0f} s of leaving them",
        _num_reentered(guard.moves),
        0,
        digits=0,
    )


def _recovered_after(guard: GuardedEngine) -> float:
    """Seconds from the spike's end until the level is 0 for good."""
    above = [now for now, level in guard.levels if level > 0]
    return max(0.0, max(above, default=0.0) + 1.0 - SPIKE_ENDS)


def _num_reentered(moves: Sequence[Move]) -> int:
    left_at: dict[Rung, float] = {}
    num_reentered = 0
    for move in moves:
        if move.to_level > move.from_level:
            num_reentered += move.at - left_at.get(move.to_level, float("-inf")) < CLOSED_SECONDS
        elif move.to_level < move.from_level:
            left_at[move.from_level] = move.at
    return num_reentered


# --- pictures ------------------------------------------------------------------------------------------


def _print_moves(moves: Sequence[Move]) -> None:
    rows = [(f"{move.at:.0f} s", f"{move.from_level:d} -> {move.to_level:d}", move.detail) for move in moves]
    print_table(("at", "level", "why"), rows or [("-", "-", "no move")])


def _print_picture(guard: GuardedEngine, requests: Sequence[Served], capacity: float) -> None:
    """Time runs to the right, PICTURE_SECONDS a character."""
    num_columns = int(SECONDS / PICTURE_SECONDS)
    offered = [0.0] * num_columns
    modest, everyone = ([list[float]() for _ in range(num_columns)] for _ in range(2))
    for served in requests:
        column = int(served.arrived_at / PICTURE_SECONDS)
        if served.is_interactive and column < num_columns:
            offered[column] += 1 / PICTURE_SECONDS / capacity
            if served.first_token_after is not None:
                everyone[column].append(served.first_token_after)
                if served.tenant in MODEST:
                    modest[column].append(served.first_token_after)
    level = [0.0] * num_columns
    for now, value in guard.levels:
        column = min(num_columns - 1, int(now / PICTURE_SECONDS))
        level[column] = max(level[column], value)
    worst = SLO.ttft_p95_ms / 1e3
    print(f"{PICTURE_SECONDS:.0f} s a character; the spike is from {SPIKE_STARTS:.0f} to {SPIKE_ENDS:.0f} s")
    print(f"  offered (full: {SPIKE_FACTOR:.0f} x capacity)   |{sparkline(offered, SPIKE_FACTOR)}|")
    print(f"  guardrail level (full: 5)      |{sparkline(level, 5)}|")
    for who, ttft in (("modest", modest), ("all   ", everyone)):
        picture = sparkline([_p95(each) for each in ttft], worst)
        print(f"  TTFT p95, {who} (full: {worst:.1f} s) |{picture}|")
    print()


def _p95(values: list[float]) -> float:
    return quantile(values, 0.95) if values else 0.0


def _print_ends(requests: Sequence[Served]) -> None:
    """How requests ended that came in the spike, by who sent them."""
    ends = Counter(
        (each.tenant.partition("-")[0], each.end or "running or waiting")
        for each in requests
        if SPIKE_STARTS <= each.arrived_at < SPIKE_ENDS
    )
    print_table(
        ("came in the spike", "how it ended", "requests"),
        [(who, end, f"{count:,}") for (who, end), count in sorted(ends.items())],
    )


# --- who sends what ------------------------------------------------------------------------------------


def _arrivals(trace: Sequence[TracedRequest], capacity: float) -> list[Request]:
    modest = [Sender(tenant=tenant, requests_per_second=MODEST_SHARE * capacity) for tenant in MODEST]
    surge = (SPIKE_FACTOR - MODEST_SHARE * len(MODEST)) * capacity / len(SURGING)
    surging = [
        Sender(tenant=tenant, requests_per_second=surge, start=SPIKE_STARTS, end=SPIKE_ENDS)
        for tenant in SURGING
    ]
    long = Sender(tenant="long", requests_per_second=LONG_SHARE * capacity, lengths=_long_context)
    people = shared_trace(trace, [*modest, *surging, long], SCALE, seconds=SECONDS, seed=1)
    offline = backlog(trace, 4000, SCALE, tenant="batch", sequence_class=SequenceClass.OFFLINE)
    return [*offline, *people]


def _everyday(trace: Sequence[TracedRequest], count: int) -> list[Request]:
    return backlog(trace, count, SCALE, tenant="everyone", sequence_class=SequenceClass.INTERACTIVE)


def _long_context(row: TracedRequest) -> tuple[int, int]:
    _, output = SCALE.lengths(row)
    return 4200 + row.num_prompt_tokens % 2800, output
