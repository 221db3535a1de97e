"""Statements a second in the database, idle and under two loads: they must not grow with the requests.

Counted in the server's own log, BEGIN and COMMIT included: its embedded build has no pg_stat_statements. The
load is short whole answers on shared cores; what is judged is the count, not the speed. A gateway that does
not keep up with the highest rate shows nothing by its count.
"""

import time
from dataclasses import dataclass
from typing import Final

from tests.benchmarks.gateway.cores import Layout, shared
from tests.benchmarks.gateway.exchange import Seen, Shot
from tests.benchmarks.gateway.http_request import chat
from tests.benchmarks.gateway.load import Generator, OpenLoad, load_process
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.speed import num_failed
from tests.benchmarks.gateway.stack import Stack, TimerKind, running_stack
from tests.benchmarks.scheduler.report import (
    Figure,
    at_least,
    at_most,
    plain,
    print_figures,
    print_table,
    progress,
)

RATES: Final = (0.0, 100.0, 600.0)
SECONDS: Final = 15.0
WARM_SECONDS: Final = 2.0
NUM_TOKENS: Final = 8
MOST_GROWTH: Final = 1.25  # from 100 to 600 requests/s; the same, but for chance
LEAST_SERVED: Final = 95.0  # in percent: what only waits asks nothing of the store, and shows nothing


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What the store was asked at one rate."""

    rate: float
    statements_per_second: float
    transactions_per_second: float
    served_per_second: float
    num_failed: int


def run(options: Options) -> list[Figure]:
    """Prints the tables and returns the figures."""
    layout = shared()
    with running_stack(TimerKind(), layout) as stack, load_process(layout.others) as generator:
        key = stack.customer("sql")
        stack.store.log_statements()
        counted = [_count(stack, generator, key, rate, options) for rate in RATES]
    _print(layout, counted)
    idle, slow, fast = counted
    growth = fast.statements_per_second / slow.statements_per_second
    figures = [
        at_least(
            "served of what was sent, at the highest rate",
            100 * fast.served_per_second / fast.rate, LEAST_SERVED, "%", digits=0,
        ),
        at_most(
            f"statements/s at {fast.rate:.0f} requests/s, of those at {slow.rate:.0f}", growth, MOST_GROWTH,
            "times",
        ),
        plain("  statements/s while idle", idle.statements_per_second, digits=1),
        plain("failed requests", sum(each.num_failed for each in counted), digits=0),
    ]  # fmt: skip
    print_figures(figures)
    return figures


def _count(stack: Stack, generator: Generator, key: str, rate: float, options: Options) -> Counted:
    progress(f"sql: {rate:.0f} requests/s")
    _load(stack, generator, key, rate, WARM_SECONDS)
    store, began_at = stack.store, time.monotonic()
    statements, transactions = store.num_statements(), store.num_transactions()
    seen = _load(stack, generator, key, rate, options.size(SECONDS, smoke=3.0))
    seconds = time.monotonic() - began_at
    return Counted(
        rate=rate,
        statements_per_second=(store.num_statements() - statements) / seconds,
        transactions_per_second=(store.num_transactions() - transactions) / seconds,
        served_per_second=sum(one.is_complete for one in seen) / seconds,
        num_failed=num_failed(seen),
    )


def _load(stack: Stack, generator: Generator, key: str, rate: float, seconds: float) -> list[Seen]:
    """Waits as long where nothing is to be sent."""
    if rate == 0:
        time.sleep(seconds)
        return []
    shots = [Shot(request=chat(key, num_tokens=NUM_TOKENS))]
    return generator.carry_out(OpenLoad(address=stack.address(), shots=shots, rate=rate, seconds=seconds))


def _print(layout: Layout, counted: list[Counted]) -> None:
    print(f"{layout}; one worker, {SECONDS:.0f} s a rate\n")
    print_table(
        ("requests/s", "served/s", "statements/s", "transactions/s"),
        [
            (
                f"{each.rate:.0f}",
                f"{each.served_per_second:.0f}",
                f"{each.statements_per_second:.1f}",
                f"{each.transactions_per_second:.1f}",
            )
            for each in counted
        ],
    )
