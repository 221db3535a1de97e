"""`sluice gateway` as a user starts it, and other `sluice` commands, on the bench's store and engine."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.benchmarks.gateway.cores import Cores, on_cores
from tests.builders.sluice_process import descendants, wait_until

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
READY_PROBES: Final = 12  # a worker's: which one answers is chance, and all must have greeted the engine
_READY: Final = re.compile(r"Gateway at http://([\d.]+):(\d+)/v1, metrics at (http://\S+),")


class GatewayProcess:
    """A running gateway with its workers."""

    def __init__(self, process: "subprocess.Popen[str]", environment: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self.host, self.port, self.metrics_url = "", 0, ""
        self._process = process
        self._environment = environment
        self._is_up = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """Of its API, without /v1."""
        return f"http://{self.host}:{self.port}"

    def worker_pids(self) -> list[int]:
        """Of the workers that run now, in no order."""
        return [pid for pid, line in descendants(self._process.pid).items() if "gateway_process" in line]

    def until_ready(self, num_workers: int) -> None:
        """Waits until its workers serve."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_up.wait(0.05):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the gateway did not start:\n" + "\n".join(self.lines))
        for _ in range(READY_PROBES * num_workers):
            wait_until(lambda: is_ready(self.url), seconds=START_SECONDS, what="the gateway to be ready")

    def stop(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            if (found := _READY.search(line)) is not None:
                self.host, self.port, self.metrics_url = found[1], int(found[2]), found[3]
                self._is_up.set()


@contextmanager
def running_gateway(
    data_dir: Path, environment: Mapping[str, str], *, num_workers: int, cores: Cores
) -> Iterator[GatewayProcess]:
    """`sluice gateway --workers N` on free ports until the block ends."""
    command = [
        *(sys.executable, "-m", "deploy", "gateway", "--workers", str(num_workers)),
        *("--port", "0", "--metrics-port", "0", "--data-dir", str(data_dir)),
    ]
    with on_cores(cores):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    gateway = GatewayProcess(process, environment)
    try:
        gateway.until_ready(num_workers)
        yield gateway
    finally:
        gateway.stop()


def sluice(*arguments: str, environment: Mapping[str, str]) -> str:
    """Runs a command; returns what it printed. Raises RuntimeError with its own words."""
    done = subprocess.run(
        [sys.executable, "-m", "deploy", *arguments], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"sluice {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Ours without any setting of Sluice, and with these: `gateway.drain_seconds` and the like."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    return inherited | {"SLUICE_" + key.replace(".", "__").upper(): value for key, value in settings.items()}


def is_ready(url: str) -> bool:
    """Whether a worker says that it can serve."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
