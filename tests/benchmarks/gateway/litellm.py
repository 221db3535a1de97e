"""LiteLLM's proxy beside ours: the same timer behind both, the same loads, the same core. Judges nothing.

It has no database, so no keys of tenants and no limits: what ours does besides is in ours' figures.
"""

from dataclasses import dataclass
from typing import Final

from tests.benchmarks.gateway import latency, saturation
from tests.benchmarks.gateway.cores import Layout, pinned
from tests.benchmarks.gateway.http_request import Address
from tests.benchmarks.gateway.latency import Latency
from tests.benchmarks.gateway.litellm_proxy import MASTER_KEY, VERSION, install, running_litellm
from tests.benchmarks.gateway.load import Generator, load_process
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.speed import NothingComplete, num_failed, rate
from tests.benchmarks.gateway.stack import TimerKind, running_stack
from tests.benchmarks.peers.system import NotAvailable
from tests.benchmarks.scheduler.report import Figure, print_table, progress

NAMES: Final = ("ours", f"LiteLLM {VERSION}")


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one gateway showed."""

    latency: Latency
    requests_per_second: float
    num_failed: int


def run(options: Options) -> list[Figure]:
    """Prints the table; there is nothing to miss. A proxy that cannot be had here is said to be missing."""
    try:
        install()
        sides = _measure(pinned(), options)
    except (NotAvailable, NothingComplete) as error:
        print(f"NOT MEASURED  {NAMES[1]}: {error}\n")
        return []
    _print(sides)
    return []


def _measure(layout: Layout, options: Options) -> list[Side]:
    with load_process(layout.others) as generator:
        slow = TimerKind(first_ms=latency.ANSWER_MS)
        with (
            running_stack(slow, layout) as stack,
            running_litellm(stack.direct, layout.gateway) as proxy,
        ):
            both = [(stack.address(), stack.customer("beside")), (proxy, MASTER_KEY)]
            latencies = [_latency(generator, *one, stack.direct, options) for one in both]
        with (
            running_stack(TimerKind(), layout) as stack,
            running_litellm(stack.direct, layout.gateway) as proxy,
        ):
            both = [(stack.address(), stack.customer("beside")), (proxy, MASTER_KEY)]
            loads = [_saturation(generator, *one, options) for one in both]
    return [
        Side(latency=seen, requests_per_second=speed, num_failed=seen.num_failed + failed)
        for seen, (speed, failed) in zip(latencies, loads, strict=True)
    ]


def _latency(generator: Generator, address: Address, key: str, direct: Address, options: Options) -> Latency:
    progress(f"latency at {address.url}")
    return latency.measure(generator, address, key, direct, options)


def _saturation(generator: Generator, address: Address, key: str, options: Options) -> tuple[float, int]:
    progress(f"saturation at {address.url}")
    seen = saturation.measure(generator, address, key, options)
    return rate(seen), num_failed(seen)


def _print(sides: list[Side]) -> None:
    print(
        f"{latency.RATE:.0f} requests/s and saturation with {saturation.NUM_CLIENTS} clients, one run each\n"
    )
    rows = [
        ("added to whole answers, p50, ms", [f"{each.latency.whole.p50:,.2f}" for each in sides]),
        ("  p99", [f"{each.latency.whole.p99:,.2f}" for each in sides]),
        (
            "added to the first text of streams, p50, ms",
            [f"{each.latency.streamed.p50:,.2f}" for each in sides],
        ),
        ("  p99", [f"{each.latency.streamed.p99:,.2f}" for each in sides]),
        ("whole answers/s on one core", [f"{each.requests_per_second:,.0f}" for each in sides]),
        ("failed requests", [str(each.num_failed) for each in sides]),
    ]
    print_table(("", *NAMES), [(name, *cells) for name, cells in rows])
