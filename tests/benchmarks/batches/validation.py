"""How fast a batch's input is validated, with the default model's tokenizer, and how much memory that takes.

python -m tests.benchmarks.batches.validation [--lines 50000]
"""

import argparse
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
from tests.builders.batch_input import CHAT, chat_line, served_model
from tests.builders.batch_orders import Orders, running_validators, validator_pids
from tests.builders.engine_messages import engine_description, engine_limits
from tests.builders.store import make_customer
from tests.fixtures_model import CACHE

LINE_BYTES: Final = (400, 4_096)
ROUNDS: Final = 3  # the fastest counts: the others were interrupted
MOST_LINE_BYTES: Final = 4 * 1024 * 1024
_MIB: Final = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    arguments = parser.parse_args()
    description = described()
    words = prose()
    print(f"{'bytes a line':>12} {'lines/s':>9} {'MB/s':>7}   of one core")
    for num_bytes in LINE_BYTES:
        print_rate(served_model(description), words, num_bytes)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        server = start(Path(directory))
        try:
            upgrade(server.url)
            asyncio.run(print_whole(server.url, Path(directory) / "files", words, num_lines=arguments.lines))
        finally:
            server.stop()


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


def print_rate(model: ServedModel, words: list[str], num_bytes: int) -> None:
    num_lines = 4_000_000 // num_bytes
    content = b"\n".join(line_of(number, num_bytes, words) for number in range(num_lines))
    seconds = min(validate(model, content) for _ in range(ROUNDS))
    print(f"{num_bytes:>12} {num_lines / seconds:>9.0f} {len(content) / seconds / 1e6:>7.2f}")


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


async def print_whole(url: str, files: Path, words: list[str], *, num_lines: int) -> None:
    database = Database.connect(url, application_name="benchmark", pool_size=3)
    orders = Orders(database, files)
    async with running_validators(database, url, files, description=described()):
        base = await validated(orders, words, name="one", num_lines=1, num_bytes=LINE_BYTES[0])
        for num_bytes in LINE_BYTES:
            own = memory_of(os.getpid(), "VmRSS")
            name = f"of-{num_bytes}"
            whole = await validated(orders, words, name=name, num_lines=num_lines, num_bytes=num_bytes)
            grown = memory_of(os.getpid(), "VmRSS") - own
            print(
                f"{num_lines} lines of {num_bytes} bytes: {whole.seconds:.1f} s from order to in_progress, "
                f"gateway {grown / _MIB:+.1f} MiB, validator {whole.peak / _MIB:.0f} MiB at its peak; "
                f"for one line {base.peak / _MIB:.0f}"
            )
    await database.close()


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


if __name__ == "__main__":
    main()
