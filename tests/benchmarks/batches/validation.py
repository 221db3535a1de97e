"""How fast a batch's input is validated, with the default model's tokenizer, and in how much memory."""

import asyncio
import io
import os
import random
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.embedded_postgres import start
from deploy.models import DEFAULT_MODEL, find
from engine.models.description import describe
from engine.protocol import EngineDescription
from gateway.batch_validation import Rules, Validation
from gateway.batches.status import BatchStatus
from gateway.db import Database
from gateway.requests.catalogue import ServedModel
from migrations.run import upgrade
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.scheduler.report import Figure, at_least, at_most, plain, print_figures, progress
from tests.builders.batch_input import CHAT, chat_line, served_model
from tests.builders.batch_orders import Orders, running_validators, validator_pids
from tests.builders.engine_messages import engine_description, engine_limits
from tests.builders.store import make_customer
from tests.fixtures_model import CACHE

LINE_BYTES: Final = (400, 4_096)
NUM_LINES: Final = 50_000
SMOKE_LINES: Final = 500
LINES_PER_SECOND: Final = 5_000.0
MEGABYTES_PER_SECOND: Final = 2.5
GROWTH_MIB: Final = 100.0
ROUNDS: Final = 3  # the fastest counts: the others were interrupted
MOST_LINE_BYTES: Final = 4 * 1024 * 1024
_MIB: Final = 1024 * 1024


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    model, words = served_model(described()), prose()
    progress("validation: lines of prose, on one core")
    small, large = (speed(model, words, num_bytes) for num_bytes in LINE_BYTES)
    figures = [
        at_least("lines of 400 bytes, a second of one core", small.lines, LINES_PER_SECOND, digits=0),
        at_least("lines of 4 KiB, of one core", large.megabytes, MEGABYTES_PER_SECOND, "MB/s"),
    ]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        server = start(Path(directory))
        try:
            upgrade(server.url)
            num_lines = options.size(NUM_LINES, smoke=SMOKE_LINES)
            figures += asyncio.run(
                whole_files(server.url, Path(directory) / "files", words, num_lines=num_lines)
            )
        finally:
            server.stop()
    print_figures(figures)
    return figures


def described() -> EngineDescription:
    """What an engine would say of the default model."""
    text = describe(find(DEFAULT_MODEL, CACHE))
    return engine_description(
        tokenizer_json=text.tokenizer_json,
        chat_template=text.chat_template,
        bos_token=text.bos_token,
        eos_token=text.eos_token,
        vocab_size=49_152,
        limits=engine_limits(max_model_len=8_192, max_output_len=4_096),
    )


def prose() -> list[str]:
    """Words as people write them."""
    root = Path(__file__).parents[3]
    return [word for path in sorted(root.glob("**/README.md")) for word in path.read_text().split()]


def line_of(number: int, num_bytes: int, words: list[str]) -> bytes:
    """A line of that length: somewhere in the prose begins what is asked."""
    bare = len(chat_line(f"request-{number}", max_tokens=16, messages=[{"role": "user", "content": ""}]))
    start_at, most = random.Random(number).randrange(len(words)), num_bytes // 2
    text = " ".join(words[start_at : start_at + most] + words[:most])[: num_bytes - bare]
    return chat_line(f"request-{number}", max_tokens=16, messages=[{"role": "user", "content": text}])


@dataclass(frozen=True)
class Speed:
    """Of validation, in a second of one core."""

    lines: float
    megabytes: float


def speed(model: ServedModel, words: list[str], num_bytes: int) -> Speed:
    """Of lines of that length."""
    num_lines = 4_000_000 // num_bytes
    content = b"\n".join(line_of(number, num_bytes, words) for number in range(num_lines))
    seconds = min(validate(model, content) for _ in range(ROUNDS))
    return Speed(lines=num_lines / seconds, megabytes=len(content) / seconds / 1e6)


def validate(model: ServedModel, content: bytes) -> float:
    """Seconds of the processor."""
    rules = Rules(endpoint=CHAT, max_lines=50_000, max_line_bytes=MOST_LINE_BYTES)
    validation = Validation(rules, lambda _: model)
    began_at = time.process_time()
    for _ in validation.items(io.BytesIO(content)):
        pass
    assert validation.faults.num == 0, validation.faults.listed()
    return time.process_time() - began_at


# --- with its process and the store ------------------------------------------------------------------------


@dataclass
class Peak:
    """The most memory that validators' processes have had, in bytes."""

    num_bytes: int = 0

    async def watch(self) -> None:
        while True:
            for pid in validator_pids():
                with suppress(FileNotFoundError, ProcessLookupError):
                    self.num_bytes = max(self.num_bytes, memory_of(pid, "VmHWM"))
            await asyncio.sleep(0.02)


async def whole_files(url: str, files: Path, words: list[str], *, num_lines: int) -> list[Figure]:
    """What a whole batch takes, in time and in memory."""
    database = Database.connect(url, application_name="benchmark", pool_size=3)
    orders = Orders(database, files)
    figures: list[Figure] = []
    async with running_validators(database, url, files, description=described()):
        base = await validated(orders, words, name="one", num_lines=1, num_bytes=LINE_BYTES[0])
        for num_bytes in LINE_BYTES:
            progress(f"validation: {num_lines:,} lines of {num_bytes} bytes")
            own = memory_of(os.getpid(), "VmRSS")
            name = f"of-{num_bytes}"
            whole = await validated(orders, words, name=name, num_lines=num_lines, num_bytes=num_bytes)
            grown = (memory_of(os.getpid(), "VmRSS") - own) / _MIB
            figures += [
                plain(
                    f"{num_lines:,} lines of {num_bytes} bytes, from order to in_progress", whole.seconds, "s"
                ),
                at_most("  the gateway's process grows by", grown, GROWTH_MIB, "MiB", digits=1),
                at_most("  its validator by", (whole.peak - base.peak) / _MIB, GROWTH_MIB, "MiB", digits=1),
            ]
    await database.close()
    return figures


@dataclass(frozen=True)
class Whole:
    """One batch's validation."""

    seconds: float
    peak: int


async def validated(orders: Orders, words: list[str], *, name: str, num_lines: int, num_bytes: int) -> Whole:
    customer = await make_customer(orders.database, name)
    batch = await orders.order(customer, (line_of(number, num_bytes, words) for number in range(num_lines)))
    began_at = time.monotonic()
    peak = Peak()
    watching = asyncio.create_task(peak.watch())
    await orders.until(customer, batch, BatchStatus.IN_PROGRESS, timeout_seconds=600)
    watching.cancel()
    return Whole(time.monotonic() - began_at, peak.num_bytes)


def memory_of(pid: int, which: str) -> int:
    """Bytes, as the kernel counts them."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) * 1024
    return 0
