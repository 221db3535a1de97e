"""What the gateway adds to an answer that takes 100 ms: an open load of 150 requests a second.

Beside it, from the same generator and in the same run, the load goes to the timer itself. Both may be late
by a timer's grain of 1 ms, which the difference of their percentiles leaves out. The engine is a timer and no
step loop: with steps, a request would wait for the one under way, and that would be measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.benchmarks.gateway.cores import pinned
from tests.benchmarks.gateway.exchange import Seen, Shot
from tests.benchmarks.gateway.http_request import Address, chat
from tests.benchmarks.gateway.load import Generator, OpenLoad, load_process
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.speed import Added, added, answer_times, first_text_times, num_failed
from tests.benchmarks.gateway.stack import TimerKind, running_stack
from tests.benchmarks.scheduler.report import Figure, at_most, plain, print_figures, progress

RATE: Final = 150.0
SECONDS: Final = 12.0
WARM_SECONDS: Final = 3.0
ANSWER_MS: Final = 100.0
NUM_TOKENS: Final = 8
P50_MS: Final = 1.5
P99_MS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Of one run: what is added to whole answers, and to the first text of streamed ones."""

    whole: Added
    streamed: Added
    direct_p50_ms: float
    num_failed: int


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    layout = pinned()
    with (
        running_stack(TimerKind(first_ms=ANSWER_MS), layout) as stack,
        load_process(layout.others) as generator,
    ):
        key = stack.customer("latency")
        runs = []
        for number in range(options.num_runs):
            progress(f"latency, run {number + 1} of {options.num_runs}")
            runs.append(measure(generator, stack.address(), key, stack.direct, options))
    print(f"{layout}; {RATE:.0f} requests/s, answers after {ANSWER_MS:.0f} ms, {len(runs)} runs, medians\n")
    figures = list(figures_of(runs))
    print_figures(figures)
    return figures


def measure(generator: Generator, through: Address, key: str, direct: Address, options: Options) -> Latency:
    """One run of both loads, each way; raises NothingComplete."""
    seen = {}
    for stream in (False, True):
        for address in (direct, through):
            _send(generator, address, key, stream, options.size(WARM_SECONDS, smoke=0.5))
            seen[stream, address] = _send(generator, address, key, stream, options.size(SECONDS, smoke=2.0))
    return Latency(
        whole=added(answer_times(seen[False, through]), answer_times(seen[False, direct])),
        streamed=added(first_text_times(seen[True, through]), first_text_times(seen[True, direct])),
        direct_p50_ms=answer_times(seen[False, direct]).p50,
        num_failed=sum(num_failed(each) for each in seen.values()),
    )


def figures_of(runs: list[Latency]) -> Iterator[Figure]:
    """Medians over the runs against the targets."""
    yield plain("the timer alone, p50", median(each.direct_p50_ms for each in runs), "ms")
    yield at_most("added to whole answers, p50", median(each.whole.p50 for each in runs), P50_MS, "ms")
    yield at_most("  p99", median(each.whole.p99 for each in runs), P99_MS, "ms")
    yield at_most(
        "added to the first text of streams, p50", median(each.streamed.p50 for each in runs), P50_MS, "ms"
    )
    yield at_most("  p99", median(each.streamed.p99 for each in runs), P99_MS, "ms")
    yield at_most("failed requests", sum(each.num_failed for each in runs), 0, digits=0)


def _send(generator: Generator, address: Address, key: str, stream: bool, seconds: float) -> list[Seen]:
    shots = [Shot(request=chat(key, num_tokens=NUM_TOKENS, stream=stream))]
    return generator.carry_out(OpenLoad(address=address, shots=shots, rate=RATE, seconds=seconds))
