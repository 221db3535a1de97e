"""A process of the bench's own: a module that says in one line of JSON where it listens, and ends with us."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.benchmarks.gateway.cores import Cores, on_cores

STOP_SECONDS: Final = 15.0


@dataclass(frozen=True, kw_only=True)
class Child:
    """A running one and what it said of itself."""

    pid: int
    said: dict[str, int]


@contextmanager
def child(module: str, *arguments: str, cores: Cores) -> Iterator[Child]:
    """`python -m module` until the block ends: then its standard input is closed, and it may finish."""
    command = [sys.executable, "-m", f"tests.benchmarks.gateway.{module}", *arguments]
    with on_cores(cores):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} ended with status {process.wait()} before it was ready")
        yield Child(pid=process.pid, said=json.loads(line))
    finally:
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


async def until_stdin_ends() -> None:
    """Waits for the parent to close it, which a killed parent does, too."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()
