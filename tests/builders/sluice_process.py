"""`sluice serve` as a user starts it: a real process, its output, its children, its end."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.embedded_postgres import find_running

START_SECONDS = 120.0
STOP_SECONDS = 60.0


class SluiceProcess:
    """One run of `sluice serve` on free ports. Usable as soon as it is constructed; `stop` it."""

    def __init__(
        self,
        data_dir: Path,
        *,
        model: Path | str,
        settings: Mapping[str, object] | None = None,
        workers: int = 1,
    ) -> None:
        self.data_dir = data_dir
        self.lines: list[str] = []
        self._is_ready = threading.Event()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        for key, value in (settings or {}).items():
            environment["SLUICE_" + key.replace(".", "__").upper()] = str(value)
        command = [sys.executable, "-m", "deploy", "serve", "--data-dir", str(data_dir)]
        command += ["--model", str(model), "--port", "0", "--admin-port", "0", "--workers", str(workers)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_until_ready()

    # --- what it printed -------------------------------------------------------------------------------

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return "\n".join(self.lines)

    @property
    def api(self) -> str:
        """The API's URL, up to /v1."""
        return self._find(r"API +(http://\S+)/v1")

    @property
    def admin(self) -> str:
        """The admin UI's URL."""
        return self._find(r"Admin +(http://\S+)")

    @property
    def metrics(self) -> str:
        """The page of the gateway's metrics."""
        return self._find(r"Metrics +(http://\S+)")

    @property
    def engine(self) -> str:
        """The engine's WebSocket URL."""
        return self._find(r"engine: (http://\S+)/metrics").replace("http://", "ws://")

    @property
    def setup_link(self) -> str:
        """The one-time link for the first operator."""
        return self._find(r"First sign-in +(http://\S+)")

    @property
    def curl(self) -> str:
        """The line to paste."""
        return self._find(r"^(curl .*)$")

    @property
    def key(self) -> str:
        """The first API key."""
        return (self.data_dir / "first-key").read_text().strip()

    @property
    def shared_secret(self) -> str:
        """What engines ask of whoever connects."""
        return self._find(r'engine_shared = "(\w+)"', (self.data_dir / "secrets.toml").read_text())

    @property
    def database_url(self) -> str:
        """Of the embedded Postgres."""
        url = find_running(self.data_dir)
        assert url is not None, "Postgres runs while sluice does"
        return url

    def command(self, *arguments: str) -> str:
        """Runs another `sluice` command on the same data directory; returns what it printed."""
        command = [sys.executable, "-m", "deploy", *arguments, "--data-dir", str(self.data_dir)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    # --- its processes ---------------------------------------------------------------------------------

    def pids(self) -> dict[int, str]:
        """This process and all it started, with their command lines."""
        return descendants(self.process.pid)

    def pid_of(self, module: str) -> int:
        """The child that runs `module`."""
        return next(pid for pid, command in self.pids().items() if module in command)

    def wait_for(self, text: str, *, seconds: float = 30.0) -> None:
        """Waits until `text` was printed."""
        wait_until(lambda: text in self.output, seconds=seconds, what=f"'{text}' in\n{self.output}")

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ends it as Ctrl-C does; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self._reader.join(5)
            assert self.process.stdout is not None
            self.process.stdout.close()

    # --- inside ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("Ready in"):
                self._is_ready.set()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready.wait(0.05):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                raise AssertionError(f"sluice serve did not become ready:\n{self.output}")

    def _find(self, pattern: str, text: str | None = None) -> str:
        found = re.search(pattern, self.output if text is None else text, re.MULTILINE)
        assert found is not None, f"{pattern} in {self.output}"
        return found.group(1)


@dataclass(frozen=True)
class ProcessLine:
    """One line of /proc."""

    pid: int
    parent: int
    command: str


def descendants(root: int) -> dict[int, str]:
    """`root` and every process below it, by pid."""
    lines = {line.pid: line for line in _processes()}
    found = {root: lines[root].command} if root in lines else {}
    is_growing = True
    while is_growing:
        children = {
            line.pid: line.command
            for line in lines.values()
            if line.parent in found and line.pid not in found
        }
        found |= children
        is_growing = bool(children)
    return found


def alive(pids: Mapping[int, str]) -> dict[int, str]:
    """Those of `pids` that still run the same command."""
    return {
        line.pid: line.command for line in _processes() if pids.get(line.pid) == line.command and line.command
    }


def wait_until(condition, *, seconds: float, what: str) -> None:
    """Polls until `condition`; for processes and servers that cannot tell us by themselves."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def _processes() -> list[ProcessLine]:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it ended while we looked
            lines.append(ProcessLine(int(entry.name), int(stat.rpartition(")")[2].split()[1]), command))
    return lines
