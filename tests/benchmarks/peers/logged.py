"""Runs long commands with their output in a file, and says now and then how far they are."""

import re
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.benchmarks.peers.system import NotAvailable
from tests.benchmarks.scheduler.report import progress

SAY_EVERY_SECONDS: Final = 15.0
LONGEST_LINE: Final = 110
_NOISE: Final = re.compile(r"^(WARNING|\s|$)")
_REASON: Final = re.compile(
    r"\b\w*(error|exception|cannot|failed|unsupported|not supported)\b", re.IGNORECASE
)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


def run_logged(command: Sequence[str], *, what: str, log: Path, environment: Mapping[str, str]) -> None:
    """Waits for `command`; raises NotAvailable with its own reason."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        _wait(process, what, log)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        raise NotAvailable(f"{what} failed: {reason_in(log)} (all of it: {log})")


def reason_in(log: Path) -> str:
    """The last line that tells why, or else the last line."""
    lines = [_COLOURS.sub("", line).strip() for line in last_lines(log, 200)]
    reasons = [line for line in lines if _REASON.search(line)]
    return _shortened((reasons or [line for line in lines if line] or ["it gave no reason"])[-1])


def last_lines(log: Path, count: int) -> list[str]:
    """Of a log that may still grow."""
    with log.open(errors="replace") as lines:
        return list(deque(lines, maxlen=count))


def _wait(process: subprocess.Popen[bytes], what: str, log: Path) -> None:
    began_at = time.monotonic()
    while True:
        try:
            process.wait(SAY_EVERY_SECONDS)
        except subprocess.TimeoutExpired:
            said = [line.strip() for line in last_lines(log, 50) if not _NOISE.match(line)]
            seconds = time.monotonic() - began_at
            progress(f"{what}, {seconds:.0f} s: {_shortened(said[-1]) if said else ''}")
        else:
            return


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
