"""Why there is a scheduler at all: fixed batching beside ours, with the real model. Wall-clock time.

The same model, limits and requests, of lognormal lengths. Fixed batching takes as many as may run, pads their
prompts to the longest, and computes every row until the longest answer is complete. The kinder variant lets
finished rows leave, but nobody join. First all requests wait from the start (tokens per second), then they
come one by one (latency). A request's latency ends with its own last token, under fixed batching too.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from engine.core.step import StepPlan, StepResult
from tests.benchmarks.scheduler.fixed_batching import (
    Leaves,
    Run,
    finished_leave,
    nobody_leaves,
    serve_in_fixed_batches,
)
from tests.benchmarks.scheduler.real_model import NO_STOP, RealEngine, real_engine
from tests.benchmarks.scheduler.report import (
    Figure,
    at_least,
    at_most,
    plain,
    print_figures,
    print_table,
    progress,
)
from tests.builders.simulator.models import Machine
from tests.builders.simulator.requests import Request, quantile

NUM_REQUESTS: Final = 128  # a p99 of a quarter of them
NUM_RUNS: Final = 3
MAX_NUM_SEQS: Final = 16
LOAD: Final = 0.8  # of what fixed batching serves, when requests come one by one
FIXED, KINDER, OURS = "fixed batching", "finished rows leave", "ours"

Serve = Callable[[Sequence[Request]], Run]
Runs = dict[str, list[Run]]


def run() -> list[Figure]:
    """Prints the tables and returns the figures."""
    real = real_engine().with_limits(max_num_seqs=MAX_NUM_SEQS)
    ways: dict[str, Serve] = {
        FIXED: partial(_serve_fixed, real, nobody_leaves),
        KINDER: partial(_serve_fixed, real, finished_leave),
        OURS: partial(_serve_ours, real),
    }
    workloads = [_requests(real, seed) for seed in range(NUM_RUNS)]
    backlogs: Runs = {way: [] for way in ways}
    streams: Runs = {way: [] for way in (FIXED, OURS)}
    for seed, requests in enumerate(workloads):
        for way, serve in ways.items():
            progress(f"batching: {way}, all waiting, run {seed + 1} of {NUM_RUNS}")
            backlogs[way].append(serve(requests))
        arriving = _one_by_one(requests, LOAD * len(requests) / backlogs[FIXED][-1].seconds, seed)
        for way, runs in streams.items():
            progress(f"batching: {way}, one by one, run {seed + 1} of {NUM_RUNS}")
            runs.append(ways[way](arriving))
    return _report(real.block_size, workloads, backlogs, streams)


def _report(
    block_size: int, workloads: Sequence[Sequence[Request]], backlogs: Runs, streams: Runs
) -> list[Figure]:
    useful = [sum(_num_tokens(request) for request in requests) for requests in workloads]
    speeds = {
        way: [tokens / each.seconds for each, tokens in zip(runs, useful, strict=True)]
        for way, runs in backlogs.items()
    }
    print_table(
        (
            "all waiting from the start",
            "tokens/s",
            "each run",
            "computed for nothing",
            "unused slots a sequence",
        ),
        [_row(way, runs, speeds[way], useful) for way, runs in backlogs.items()],
    )
    speed = {way: statistics.median(each) for way, each in speeds.items()}
    short = {
        way: statistics.median(
            _short_p99(requests, each) for each, requests in zip(runs, workloads, strict=True)
        )
        for way, runs in streams.items()
    }
    most_unused = max(slots for each in backlogs[OURS] for slots in each.unused_slots)
    figures = [
        at_least("tokens/s, of fixed batching's", speed[OURS] / speed[FIXED], 2.0, "times"),
        plain("  of the kinder variant's", speed[OURS] / speed[KINDER], "times"),
        at_most("shortest quartile's p99 latency, of fixed's", short[OURS] / short[FIXED], 1 / 3, "times"),
        plain("  fixed batching", short[FIXED], "s"),
        plain("  ours", short[OURS], "s"),
        at_most("ours: unused slots of a sequence, at most", most_unused, block_size - 1, digits=0),
    ]
    print_figures(figures)
    return figures


def _row(way: str, runs: Sequence[Run], speeds: Sequence[float], useful: Sequence[int]) -> tuple[str, ...]:
    needed = [
        tokens - len(each.latencies) for each, tokens in zip(runs, useful, strict=True)
    ]  # not the last ones
    wasted = [1 - tokens / each.num_computed_tokens for each, tokens in zip(runs, needed, strict=True)]
    unused = [slots for each in runs for slots in each.unused_slots]
    return (
        way,
        f"{statistics.median(speeds):.1f}",
        " ".join(f"{speed:.1f}" for speed in speeds),
        f"{statistics.median(wasted):.0%}",
        f"{statistics.mean(unused):.1f}",
    )


def _short_p99(requests: Sequence[Request], run: Run) -> float:
    """The p99 latency of the quarter with the fewest tokens (seconds)."""
    places = sorted(range(len(requests)), key=lambda place: _num_tokens(requests[place]))
    return quantile([run.latencies[place] for place in places[: len(places) // 4]], 0.99)


# --- the ways ------------------------------------------------------------------------------------------


def _serve_fixed(real: RealEngine, leaves: Leaves, requests: Sequence[Request]) -> Run:
    return serve_in_fixed_batches(
        requests, real.machine(), real.limits, block_size=real.block_size, leaves=leaves
    )


def _serve_ours(real: RealEngine, requests: Sequence[Request]) -> Run:
    watched = _Watched(real.machine(), real.block_size)
    record = real.run(requests, machine=watched, until=float("inf"))
    return Run(
        seconds=record.ended_at,
        num_computed_tokens=sum(step.num_tokens for step in record.steps),
        latencies={place: served.latency or 0.0 for place, served in enumerate(record.requests)},
        unused_slots=watched.unused_slots,
    )


class _Watched:
    """A machine that notes how many slots a sequence holds beyond its known text."""

    def __init__(self, machine: Machine, block_size: int) -> None:
        self._machine = machine
        self._block_size = block_size
        self.unused_slots: list[int] = []
        self.now, self.skip_to = machine.now, machine.skip_to
        self.expect, self.forget = machine.expect, machine.forget

    def compute(self, plan: StepPlan) -> StepResult:
        """Rows that sample have all their known text in the step, or behind it."""
        self.unused_slots += [
            len(row.block_table) * self._block_size - row.start - len(row.token_ids)
            for row in plan.rows
            if row.sampling is not None
        ]
        return self._machine.compute(plan)


# --- the requests --------------------------------------------------------------------------------------


def _requests(real: RealEngine, seed: int) -> list[Request]:
    generator = random.Random(f"batching {seed}")
    lengths = [
        (
            min(128, max(4, round(generator.lognormvariate(3.5, 0.7)))),  # median 33, mean 41
            min(64, max(2, round(generator.lognormvariate(2.3, 1.0)))),  # median 10, mean 15
        )
        for _ in range(NUM_REQUESTS)
    ]
    return [
        Request(
            at=0.0,
            tenant=f"tenant-{number % 4}",
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            max_tokens=output,
            token_ids=real.prompt(prompt, seed=(seed, number)),
            stop_token_ids=NO_STOP,
        )
        for number, (prompt, output) in enumerate(lengths)
    ]


def _one_by_one(requests: Sequence[Request], per_second: float, seed: int) -> list[Request]:
    """The same requests as a Poisson stream."""
    generator = random.Random(f"arrivals {seed}")
    at, arriving = 0.0, list[Request]()
    for request in requests:
        at += generator.expovariate(per_second)
        arriving.append(replace(request, at=at))
    return arriving


def _num_tokens(request: Request) -> int:
    return request.num_prompt_tokens + request.num_output_tokens
