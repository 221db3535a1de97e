"""A peer's server as a process: started, waited for, ended with everything it started itself."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.benchmarks.peers.logged import reason_in
from tests.benchmarks.peers.system import NotAvailable
from tests.benchmarks.scheduler.report import progress

STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.25
SAY_EVERY_SECONDS: Final = 20.0


@contextmanager
def serving(
    command: Sequence[str],
    url: str,
    *,
    environment: Mapping[str, str],
    log: Path,
    start_timeout_seconds: float = 600.0,
    ready_path: str = "/v1/models",
) -> Iterator[None]:
    """`command` while it serves at `url`; raises NotAvailable when it ends or is not ready in time.

    It is ready when it answers `ready_path`, which must ask for no key.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        _wait_until_ready(process, f"{url}{ready_path}", log, start_timeout_seconds)
        yield
    finally:
        _end(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], url: str, log: Path, start_timeout_seconds: float
) -> None:
    began_at = said_at = time.monotonic()
    while not _answers(url):
        now = time.monotonic()
        if process.poll() is not None:
            raise NotAvailable(
                f"it ended with status {process.returncode} while starting: {reason_in(log)} (log: {log})"
            )
        if now - began_at > start_timeout_seconds:
            raise NotAvailable(f"it was not ready after {start_timeout_seconds:.0f} s (log: {log})")
        if now - said_at > SAY_EVERY_SECONDS:
            progress(f"starting for {now - began_at:.0f} s")
            said_at = now
        time.sleep(POLL_SECONDS)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The whole session: servers start workers that would outlive them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
