"""A batch of two thousand lines beside people who take 30 % of what the machine can do, with the real model.

First people alone, as many as keep the machine busy: what it can do. Then people at 30 % of that, alone; then
the same while the batch runs. Held against its targets is what they notice of it. The engine is looked at as
often both times: a look takes tens of milliseconds of its interpreter.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from deploy.models import DEFAULT_MODEL
from engine.core.slo import SloTargets
from tests.benchmarks.batches.client import ENDED, BatchClient, Files, batch_client, chat_lines
from tests.benchmarks.gateway.cores import shared
from tests.benchmarks.gateway.exchange import Seen, Shot
from tests.benchmarks.gateway.gauges import read_gauges
from tests.benchmarks.gateway.http_request import Address, chat
from tests.benchmarks.gateway.load import ClosedLoad, Generator, OpenLoad, load_process
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.speed import first_text_times, gaps, num_failed, rate
from tests.benchmarks.scheduler.report import Figure, at_most, plain, print_figures, progress
from tests.builders.sluice_process import SluiceProcess

NUM_LINES: Final = 2_000
SMOKE_LINES: Final = 20
LINE_TOKENS: Final = 24
SHARE: Final = 0.3
NUM_CLIENTS: Final = 32
NUM_TOKENS: Final = 48
CAPACITY_SECONDS: Final = 30.0
ALONE_SECONDS: Final = 180.0
BESIDE_SECONDS: Final = 60.0  # at a time, while the batch goes on
WORSE: Final = 1.5
LOOK_SECONDS: Final = 2.0  # four looks a second took a fifth of the batch's speed
DECK: Final = 64
_TOPICS: Final = ("rivers", "trains", "bread", "winter", "maps", "glass", "bees", "harbours")


@dataclass
class Watch:
    """What the engine was seen to do while lines waited."""

    num_looks: int = 0
    num_idle: int = 0
    num_idle_without_cause: int = 0
    levels: Counter[int] = field(default_factory=Counter)

    def look(self, metrics_url: str) -> None:
        """One look at its gauges; one that fails is none."""
        with suppress(OSError):
            gauges = read_gauges(metrics_url)
            is_idle = _sum(gauges, "num_requests_running") == 0
            level = int(_sum(gauges, "guardrail_level"))
            self.num_looks += 1
            self.levels[level] += 1
            self.num_idle += is_idle
            self.num_idle_without_cause += is_idle and level == 0


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    num_lines = options.size(NUM_LINES, smoke=SMOKE_LINES)
    with (
        TemporaryDirectory(prefix="sluice-bench-") as folder,
        load_process(shared().others) as generator,
    ):
        progress("beside: the model")
        server = SluiceProcess(Path(folder), model=DEFAULT_MODEL)
        try:
            figures = _measured(server, generator, num_lines, options)
        finally:
            server.stop()
    print_figures(figures)
    return figures


def _measured(server: SluiceProcess, generator: Generator, num_lines: int, options: Options) -> list[Figure]:
    parts = urlsplit(server.api)
    address = Address(host=str(parts.hostname), port=int(parts.port or 0))
    shots = _people(server.key)
    progress("beside: what the machine can do")
    busy = ClosedLoad(
        address=address, shots=shots, num_clients=NUM_CLIENTS,
        seconds=options.size(CAPACITY_SECONDS, smoke=5.0),
    )  # fmt: skip
    capacity = rate(generator.carry_out(busy))
    progress(f"beside: people alone, {SHARE * capacity:.2f} requests/s of {capacity:.2f}")
    alone = _alone(
        server,
        generator,
        _open(address, shots, capacity, options.size(ALONE_SECONDS, smoke=10.0), seed=1),
    )
    with batch_client(server.api, server.key) as client:
        content = chat_lines(num_lines, model=DEFAULT_MODEL, num_tokens=LINE_TOKENS, question=_question)
        batch_id = client.order(client.upload(content))
        beside, watch = _beside(server, client, batch_id, generator, address, shots, capacity, options)
        *_, ended = client.watched(batch_id)
        seconds = ended["completed_at"] - ended["in_progress_at"]
        files = client.files(ended)
    figures = [
        plain("requests/s at which the machine is busy", capacity),
        *_of_batch(ended, files, num_lines, seconds),
        *_of_people(alone, beside),
        at_most(
            "engine idle while lines waited, no guardrail on",
            watch.num_idle_without_cause,
            0,
            "looks",
            digits=0,
        ),
        plain("  looks", watch.num_looks, digits=0),
    ]
    print(f"guardrail levels seen: {dict(watch.levels)}\n")
    return figures


def _alone(server: SluiceProcess, generator: Generator, load: OpenLoad) -> list[Seen]:
    under_way, unused = generator.begin(load), Watch()
    while not under_way.done():
        unused.look(_metrics_url(server))
        time.sleep(LOOK_SECONDS)
    return under_way.result()


def _metrics_url(server: SluiceProcess) -> str:
    return f"{server.engine.replace('ws://', 'http://')}/metrics"


def _beside(
    server: SluiceProcess,
    client: BatchClient,
    batch_id: str,
    generator: Generator,
    address: Address,
    shots: Sequence[Shot],
    capacity: float,
    options: Options,
) -> tuple[list[Seen], Watch]:
    """People while the batch runs; those who came when it was over do not count."""
    seen: list[Seen] = []
    watch, seed, ended_at = Watch(), 2, None
    while ended_at is None:
        load = generator.begin(
            _open(address, shots, capacity, options.size(BESIDE_SECONDS, smoke=10.0), seed=seed)
        )
        seed += 1
        ended_at = _watch_during(load, client, batch_id, watch, _metrics_url(server))
        until = ended_at or float("inf")
        seen += [one for one in load.result() if one.due_at < until]
    return seen, watch


def _watch_during(
    load: "Future[list[Seen]]", client: BatchClient, batch_id: str, watch: Watch, metrics_url: str
) -> float | None:
    """When the batch ended, if it did."""
    while not load.done():
        state = client.state(batch_id)
        counts = state["request_counts"]
        if state["status"] in ENDED or counts["completed"] + counts["failed"] == counts["total"] > 0:
            return time.monotonic()
        if state["status"] == "in_progress" and counts["completed"] > 0:
            watch.look(metrics_url)
            progress(
                f"beside: {counts['completed']} of {counts['total']}"
            ) if watch.num_looks % 10 == 1 else None
        time.sleep(LOOK_SECONDS)
    return None


def _open(address: Address, shots: Sequence[Shot], capacity: float, seconds: float, *, seed: int) -> OpenLoad:
    return OpenLoad(address=address, shots=shots, rate=SHARE * capacity, seconds=seconds, seed=seed)


def _people(key: str) -> list[Shot]:
    """Streams of people who all ask something else."""
    return [
        Shot(
            request=chat(
                key,
                num_tokens=NUM_TOKENS,
                stream=True,
                model=DEFAULT_MODEL,
                question=f"Tell me {number} things about {_TOPICS[number % len(_TOPICS)]}, please.",
            )
        )
        for number in range(2, 2 + DECK)
    ]


def _question(number: int) -> str:
    return f"Say in one sentence what people use {_TOPICS[number % len(_TOPICS)]} number {number} for."


def _of_batch(ended: Mapping[str, Any], files: Files, num_lines: int, seconds: float) -> list[Figure]:
    answered = Counter(line["custom_id"] for line in files.output)
    return [
        plain("batch lines a second", num_lines / seconds),
        at_most(
            "lines without exactly one answer",
            num_lines - sum(n == 1 for n in answered.values()),
            0,
            digits=0,
        ),
        at_most("lines that failed", ended["request_counts"]["failed"], 0, digits=0),
    ]


def _of_people(alone: Sequence[Seen], beside: Sequence[Seen]) -> list[Figure]:
    slo = SloTargets()
    ttft, ttft_alone = first_text_times(beside), first_text_times(alone)
    itl, itl_alone = gaps(beside), gaps(alone)
    return [
        plain("people's requests alone", len(alone), digits=0),
        plain("people's requests beside the batch", len(beside), digits=0),
        at_most("  that failed", num_failed(alone) + num_failed(beside), 0, digits=0),
        plain("TTFT p99 alone", ttft_alone.p99, "ms", digits=0),
        plain("TTFT p99 beside", ttft.p99, "ms", digits=0),
        at_most("  over alone", ttft.p99 / ttft_alone.p99, WORSE, "times"),
        plain("ITL p99 alone", itl_alone.p99, "ms", digits=0),
        plain("ITL p99 beside", itl.p99, "ms", digits=0),
        at_most("  over alone", itl.p99 / itl_alone.p99, WORSE, "times"),
        at_most("TTFT p95 beside", ttft.p95, slo.ttft_p95_ms, "ms", digits=0),
        at_most("ITL p95 beside", itl.p95, slo.itl_p95_ms, "ms", digits=0),
    ]


def _sum(gauges: Mapping[str, float], stem: str) -> float:
    return sum(value for name, value in gauges.items() if stem in name)
