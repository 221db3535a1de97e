"""The engine as a process of its own: when it first answers, its memory, and who waits for a long prompt."""

import asyncio
import os
import random
import re
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from websockets.exceptions import InvalidHandshake

from deploy.models import DEFAULT_MODEL
from engine.protocol import Finished, GenerateRequest, Sampling, StepEvents, TokenDelta
from engine.settings import SloSection
from tests.benchmarks.scheduler.report import Figure, at_most, plain, progress
from tests.builders.engine_peer import Peer, dial_url, request
from tests.builders.simulator.requests import quantile

NUM_RUNS: Final = 3
NUM_SHORT: Final = 8
NUM_SHORT_TOKENS: Final = 32
NUM_ANSWER_TOKENS: Final = 700  # more than the steps that the long prompt takes beside them
NUM_LONG_TOKENS: Final = 4096
START_TIMEOUT_SECONDS: Final = 120.0
MIB: Final = 1024**2
KV_CACHE_GIB: Final = 0.25
WEIGHTS_FACTOR: Final = 1.3
ALLOWANCE_MIB: Final = 300e6 / MIB


@dataclass(frozen=True)
class EngineProcess:
    """A running `sluice engine`."""

    url: str
    pid: int
    shared_secret: str

    @property
    def resident_mib(self) -> float:
        """Memory that it holds, in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024


@contextmanager
def engine_process(data_dir: Path) -> Iterator[EngineProcess]:
    """Starts `sluice engine` as a user does, with the default model out of `data_dir`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    secret = secrets.token_hex(32)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    environment |= {
        "SLUICE_SECRETS__ENGINE_SHARED": secret,
        "SLUICE_ENGINE__KV_CACHE_GIB": str(KV_CACHE_GIB),
    }
    command = [sys.executable, "-m", "deploy", "engine", "--data-dir", str(data_dir)]
    with subprocess.Popen(
        [*command, "--listen", f"127.0.0.1:{port}"], env=environment, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield EngineProcess(f"ws://127.0.0.1:{port}", process.pid, secret)
        finally:
            process.terminate()
            process.wait(30)


def start(data_dir: Path) -> list[Figure]:
    """Seconds from `sluice engine` to its first token, with the model prepared by an earlier start."""
    seconds = []
    for run in range(NUM_RUNS + 1):  # the first one is that earlier start
        progress(f"start, run {run} of {NUM_RUNS}")
        begun = time.perf_counter()
        with engine_process(data_dir) as engine:
            asyncio.run(_first_token(engine))
            seconds.append(time.perf_counter() - begun)
    return [
        at_most("start to first token, median", statistics.median(seconds[1:]), 5.0, "s"),
        plain("  slowest", max(seconds[1:]), "s"),
    ]


def long_prompt(data_dir: Path, weights_bytes: int) -> list[Figure]:
    """A prompt of 4,096 tokens comes while 8 short answers stream; and the memory that all of it takes."""
    alone, beside, ttft, resident = list[float](), list[float](), list[float](), list[float]()
    for run in range(NUM_RUNS):
        progress(f"long prompt, run {run + 1} of {NUM_RUNS}")
        with engine_process(data_dir) as engine:
            asyncio.run(_first_token(engine))
            quiet = asyncio.run(_beside(engine, num_long_tokens=0))
            busy = asyncio.run(_beside(engine, num_long_tokens=NUM_LONG_TOKENS))
            alone.append(quantile(quiet.gaps_ms, 0.95))
            beside.append(quantile(busy.gaps_ms, 0.95))
            ttft.append(busy.long_ttft_seconds)
            resident.append(engine.resident_mib)
    guard = SloSection().itl_p95_ms
    most_mib = WEIGHTS_FACTOR * weights_bytes / MIB + 1024 * KV_CACHE_GIB + ALLOWANCE_MIB
    return [
        plain("8 short streams alone: ITL p95", statistics.median(alone), "ms", digits=0),
        at_most("beside 4,096 tokens: ITL p95", statistics.median(beside), guard, "ms", digits=0),
        plain("  the long prompt's TTFT", statistics.median(ttft), "s"),
        at_most("resident memory", max(resident), most_mib, "MiB", digits=0),
        plain("  weights", weights_bytes / MIB, "MiB", digits=0),
        plain("  KV cache", 1024 * KV_CACHE_GIB, "MiB", digits=0),
    ]


@dataclass
class Seen:
    """What clients saw: the short streams' gaps between tokens, and when the long prompt's answer began."""

    gaps_ms: list[float] = field(default_factory=list)
    long_ttft_seconds: float = 0.0


async def _beside(engine: EngineProcess, *, num_long_tokens: int) -> Seen:
    """Streams short answers; once all flow, the long prompt comes. Gaps count until that has its answer."""
    async with _dialled(engine) as peer:
        for index in range(NUM_SHORT):
            await peer.send(_request(f"short{index}", NUM_SHORT_TOKENS, NUM_ANSWER_TOKENS))
        return await _watch(peer, num_long_tokens)


async def _watch(peer: Peer, num_long_tokens: int) -> Seen:
    seen, latest, num_left = Seen(), dict[str, float](), NUM_SHORT
    long_sent_at: float | None = None
    while num_left > 0:
        message = await peer.receive()
        now = time.perf_counter()
        if not isinstance(message, StepEvents):
            continue
        for event in message.events:
            if event.id == "long":
                seen.long_ttft_seconds = seen.long_ttft_seconds or now - (long_sent_at or now)
            elif isinstance(event, TokenDelta):
                is_counted = num_long_tokens == 0 or (long_sent_at and not seen.long_ttft_seconds)
                if event.id in latest and is_counted:
                    seen.gaps_ms.append(1000 * (now - latest[event.id]))
                latest[event.id] = now
            elif isinstance(event, Finished):
                num_left -= 1
        if num_long_tokens and long_sent_at is None and len(latest) == NUM_SHORT:
            long_sent_at = time.perf_counter()
            await peer.send(_request("long", num_long_tokens, 1))
    assert seen.long_ttft_seconds or not num_long_tokens, "the short answers ended before the long prompt"
    return seen


def _request(id: str, num_prompt_tokens: int, num_output_tokens: int) -> GenerateRequest:
    generator = random.Random(f"{id} {num_prompt_tokens}")
    return request(
        id,
        model=DEFAULT_MODEL,
        prompt_ids=tuple(generator.randrange(100, 40_000) for _ in range(num_prompt_tokens)),
        sampling=Sampling(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True),
        timeout_ms=600_000,
    )


async def _first_token(engine: EngineProcess) -> None:
    async with _dialled(engine) as peer:
        await peer.send(_request("first", 5, 1))
        await peer.end_of("first")


@asynccontextmanager
async def _dialled(engine: EngineProcess) -> AsyncIterator[Peer]:
    """A connection, as soon as the engine takes one."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        try:
            peer = await dial_url(engine.url, secret=engine.shared_secret)
            break
        except (OSError, InvalidHandshake):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)
    try:
        yield peer
    finally:
        await peer.websocket.close()
