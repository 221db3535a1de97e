"""How many short lines a second are claimed, run, recorded and charged, the database and the engine included.

The engine is the real one with the scripted runner. Everything shares the machine's cores.
"""

import time
from typing import Final

from tests.benchmarks.batches.client import batch_client, chat_lines
from tests.benchmarks.gateway.cores import shared
from tests.benchmarks.gateway.http_request import MODEL
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.processor_time import processor_seconds
from tests.benchmarks.gateway.stack import ScriptedKind, Stack, running_stack
from tests.benchmarks.scheduler.report import Figure, at_least, at_most, plain, print_figures, progress

NUM_LINES: Final = 20_000
SMOKE_LINES: Final = 300
NUM_TOKENS: Final = 8
NUM_WORKERS: Final = 2
STEP_MS: Final = 5.0
ITEMS_PER_SECOND: Final = 1_500.0
POLL_SECONDS: Final = 0.1


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    num_lines = options.size(NUM_LINES, smoke=SMOKE_LINES)
    runs = []
    with running_stack(ScriptedKind(step_ms=STEP_MS), shared(), num_workers=NUM_WORKERS) as stack:
        key = stack.customer("batches")
        for number in range(options.num_runs):
            progress(f"throughput: run {number + 1} of {options.num_runs}, {num_lines:,} lines")
            runs.append(_measured(stack, key, num_lines))
    median = sorted(runs, key=lambda one: one["items"])[len(runs) // 2]
    figures = [
        at_least("lines recorded and charged a second", median["items"], ITEMS_PER_SECOND, digits=0),
        plain("  in the slowest run", min(one["items"] for one in runs), digits=0),
        plain("gateway workers' processor time a line", median["gateway_us"], "us", digits=0),
        plain("engine's", median["engine_us"], "us", digits=0),
        plain("database's", median["store_us"], "us", digits=0),
        at_most("lines without their charge", max(one["uncharged"] for one in runs), 0, digits=0),
    ]
    print_figures(figures)
    return figures


def _measured(stack: Stack, key: str, num_lines: int) -> dict[str, float]:
    """One batch, timed from the moment its lines may be claimed until the last is recorded."""
    gateway, engine = stack.gateways[0].worker_pids(), [stack.engine.pid]
    num_before = stack.store.num_charges()
    with batch_client(stack.gateways[0].url, key) as client:
        content = chat_lines(num_lines, model=MODEL, num_tokens=NUM_TOKENS, question=lambda n: f"Number {n}?")
        batch_id = client.order(client.upload(content))
        _until(stack, batch_id, 0)
        began_at = time.monotonic()
        before = processor_seconds(gateway), processor_seconds(engine), stack.store.processor_seconds()
        _until(stack, batch_id, num_lines)
        seconds = time.monotonic() - began_at
        after = processor_seconds(gateway), processor_seconds(engine), stack.store.processor_seconds()
        *_, ended = client.watched(batch_id)
    assert ended["request_counts"]["completed"] == num_lines, ended
    per_line = [1e6 * (late - early) / num_lines for early, late in zip(before, after, strict=True)]
    return {
        "items": num_lines / seconds,
        "gateway_us": per_line[0],
        "engine_us": per_line[1],
        "store_us": per_line[2],
        "uncharged": num_before + num_lines - stack.store.num_charges(),
    }


def _until(stack: Stack, batch_id: str, num_recorded: int) -> None:
    """Waits until validation is over and so many of its lines are recorded."""
    while (num := stack.store.num_recorded(batch_id)) is None or num < num_recorded:
        time.sleep(POLL_SECONDS)
