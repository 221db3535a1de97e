"""Many streams at once through one worker on one core: do their tokens keep the engine's time?

256 at 20 tokens/s each: how much wider the gaps between two texts are than with the same load sent to the
timer itself. 512 at 50 tokens/s each: every stream ends whole, and no gap is over 250 ms; tokens may come
together.
Streams begin spread over two seconds, as people do not all ask at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.benchmarks.gateway.cores import Layout, pinned
from tests.benchmarks.gateway.exchange import Seen, Shot
from tests.benchmarks.gateway.http_request import Address, chat
from tests.benchmarks.gateway.load import ClosedLoad, Generator, load_process
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.processor_time import share_of_core
from tests.benchmarks.gateway.speed import added, gaps, num_failed
from tests.benchmarks.gateway.stack import TimerKind, running_stack
from tests.benchmarks.scheduler.report import Figure, at_most, plain, print_figures, progress

FIRST_MS: Final = 100.0
SECONDS: Final = 10.0
RAMP_SECONDS: Final = 2.0
ADDED_P99_MS: Final = 10.0
MOST_GAP_MS: Final = 250.0


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """So many streams at so many tokens a second each."""

    num_streams: int
    tokens_per_second: float

    def __str__(self) -> str:
        return f"{self.num_streams} streams at {self.tokens_per_second:.0f} tokens/s"


CALM: Final = Crowd(num_streams=256, tokens_per_second=20)
BUSY: Final = Crowd(num_streams=512, tokens_per_second=50)


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    layout = pinned()
    figures = [*_calm(CALM, layout, options), *_busy(BUSY, layout, options)]
    print(f"{layout}; {SECONDS:.0f} s a stream, {options.num_runs} runs, medians of gaps\n")
    print_figures(figures)
    return figures


def _calm(crowd: Crowd, layout: Layout, options: Options) -> list[Figure]:
    direct, through, failed = list[list[Seen]](), list[list[Seen]](), 0
    with (
        running_stack(_engine(crowd), layout) as stack,
        load_process(layout.others) as generator,
    ):
        key = stack.customer("streams")
        for number in range(options.num_runs):
            progress(f"{crowd}, run {number + 1} of {options.num_runs}")
            direct.append(_send(generator, stack.direct, key, crowd, options))
            through.append(_send(generator, stack.address(), key, crowd, options))
            failed += num_failed(direct[-1]) + num_failed(through[-1])
    differences = [added(gaps(ours), gaps(bare)) for ours, bare in zip(through, direct, strict=True)]
    return [
        plain(f"{crowd}: gap p99, the timer alone", median(gaps(each).p99 for each in direct), "ms"),
        plain("  gap p99 through the gateway", median(gaps(each).p99 for each in through), "ms"),
        at_most("  added to the gap, p99", median(each.p99 for each in differences), ADDED_P99_MS, "ms"),
        at_most("  failed streams", failed, 0, digits=0),
    ]


def _busy(crowd: Crowd, layout: Layout, options: Options) -> list[Figure]:
    runs, shares = list[list[Seen]](), list[float]()
    with (
        running_stack(_engine(crowd), layout) as stack,
        load_process(layout.others) as generator,
    ):
        key = stack.customer("streams")
        for number in range(options.num_runs):
            progress(f"{crowd}, run {number + 1} of {options.num_runs}")
            with share_of_core(stack.gateways[0].worker_pids()) as share:
                runs.append(_send(generator, stack.address(), key, crowd, options))
            shares.append(share.value)
    return [
        at_most(f"{crowd}: longest gap", max(gaps(each).max for each in runs), MOST_GAP_MS, "ms", digits=0),
        at_most("  failed streams", sum(map(num_failed, runs)), 0, digits=0),
        plain("  tokens in one text, mean", _tokens_a_text([one for each in runs for one in each])),
        plain("  of its core, the worker took", 100 * median(shares), "%", digits=0),
    ]


def _engine(crowd: Crowd) -> TimerKind:
    return TimerKind(first_ms=FIRST_MS, token_ms=1_000 / crowd.tokens_per_second)


def _send(generator: Generator, address: Address, key: str, crowd: Crowd, options: Options) -> list[Seen]:
    """One stream for each client."""
    seconds = options.size(SECONDS, smoke=2.0)
    num_tokens = round(seconds * crowd.tokens_per_second)
    shots = [Shot(request=chat(key, num_tokens=num_tokens, stream=True))]
    num_streams = options.size(crowd.num_streams, smoke=crowd.num_streams // 8)
    return generator.carry_out(
        ClosedLoad(
            address=address,
            shots=shots,
            num_clients=num_streams,
            num_requests=num_streams,
            ramp_seconds=RAMP_SECONDS,
        )
    )


def _tokens_a_text(seen: Sequence[Seen]) -> float:
    num_texts = sum(len(one.gaps) + 1 for one in seen if one.num_tokens)
    return sum(one.num_tokens for one in seen) / num_texts if num_texts else 0.0
