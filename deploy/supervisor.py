"""Keeps child processes running: starts them, reports those that die, starts them again, stops them in order.

It knows processes, not what they do. Children live in sessions of their own, so that Ctrl-C reaches only the
supervisor, and hold a pipe whose other end is here, so that they end when the supervisor is killed.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

SUPERVISOR_FD_VARIABLE = "SLUICE_SUPERVISOR_FD"
FIRST_BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 10.0
HEALTHY_AFTER_SECONDS = 30.0  # a child that lived this long starts with a short back-off again

Say = Callable[[str], None]


class ChildFailed(Exception):
    """A child ended before it was ready; the message is its own last line."""


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """A process to keep alive. `stop_seconds` is how long it may take to end after SIGTERM.

    It inherits our environment without the variables named in `withheld`, and has its own besides.

    Children of one `stops_with` stop side by side; one without stops by itself.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    withheld: frozenset[str] = frozenset()
    file_descriptors: tuple[int, ...] = ()
    stops_with: str | None = None
    stop_seconds: float = 10.0
    on_end: Callable[[int], None] = lambda pid: None


class Child:
    """One process and its successors."""

    def __init__(self, spec: ChildSpec, *, log_path: Path, supervisor_fd: int, say: Say) -> None:
        self.spec = spec
        self._log_path = log_path
        self._supervisor_fd = supervisor_fd
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False
        self._has_been_ready = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Starts the process and from now on keeps it alive."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep_alive(), name=f"keep {self.spec.name}")

    async def until_ready(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Waits until `is_ready`; raises ChildFailed if the process ends first."""
        while not await is_ready():
            if self._process is None or self._process.returncode is not None:
                raise ChildFailed(f"{self.spec.name}: {self.last_line().removeprefix('sluice: ')}")
            await asyncio.sleep(0.05)
        self._has_been_ready = True

    async def stop(self) -> None:
        """SIGTERM, time to finish, and SIGKILL for what is left."""
        self._is_stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)  # it may be starting a successor
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), self.spec.stop_seconds)
        except TimeoutError:
            self._say(f"{self.spec.name} did not stop within {self.spec.stop_seconds:.0f} s: killed")
        self._signal(signal.SIGKILL, whole_session=True)
        await self._process.wait()

    def kill(self) -> None:
        """Ends the process for good, without waiting for what it does."""
        self._is_stopping = True
        if self._process is not None:
            self._signal(signal.SIGKILL, whole_session=True)

    def last_line(self) -> str:
        """The last thing the process wrote."""
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    # --- keeping alive ---------------------------------------------------------------------------------

    async def _keep_alive(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while not self._is_stopping:
            assert self._process is not None
            started_at = time.monotonic()
            status = await self._process.wait()
            self.spec.on_end(self._process.pid)
            if self._is_stopping or not self._has_been_ready:
                return
            if time.monotonic() - started_at > HEALTHY_AFTER_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            self._say(f"{self.spec.name} {_how(status)}; starting it again in {backoff:.2g} s")
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
            await self._launch()

    async def _launch(self) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in self.spec.withheld},
            **self.spec.environment,
            SUPERVISOR_FD_VARIABLE: str(self._supervisor_fd),
        }
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                env=environment,
                pass_fds=(*self.spec.file_descriptors, self._supervisor_fd),
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _open_log(self) -> IO[bytes]:
        """A start begins a new file and keeps the last one's: it may say why there is a new start."""
        if self._has_been_ready:
            return self._log_path.open("ab")
        if self._log_path.exists():
            self._log_path.replace(self._log_path.with_suffix(".previous.log"))
        return self._log_path.open("wb")

    def _signal(self, number: signal.Signals, *, whole_session: bool = False) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            if whole_session:
                os.killpg(self._process.pid, number)
            elif self._process.returncode is None:
                self._process.send_signal(number)


class Supervisor:
    """Children by name, started in the order of `start` calls and stopped in the reverse order."""

    def __init__(self, *, log_directory: Path, say: Say) -> None:
        self.log_directory = log_directory
        self._say = say
        self._children: list[Child] = []
        self._stopping: list[Child] = []
        self._child_end, self._own_end = os.pipe()  # children see its end when this process is gone

    async def start(self, spec: ChildSpec) -> Child:
        """Starts a child and keeps it alive until `stop`."""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        child = Child(
            spec,
            log_path=self.log_directory / f"{spec.name}.log",
            supervisor_fd=self._child_end,
            say=self._say,
        )
        self._children.append(child)
        await child.start()
        return child

    async def stop(self) -> None:
        """Stops the children, the last started first."""
        while self._children:
            last = self._children.pop()
            beside = [child for child in self._children if _stop_together(child.spec, last.spec)]
            self._children = [child for child in self._children if child not in beside]
            self._stopping = [last, *beside]
            await asyncio.gather(*(child.stop() for child in self._stopping))
        for descriptor in (self._child_end, self._own_end):
            os.close(descriptor)

    def hurry(self) -> None:
        """While it stops: what is being stopped, and all that is still to be, ends at once."""
        for child in (*self._stopping, *self._children):
            child.kill()


def _stop_together(one: ChildSpec, other: ChildSpec) -> bool:
    return one.stops_with is not None and one.stops_with == other.stops_with


def _how(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def python(*arguments: str) -> tuple[str, ...]:
    """The command that runs a module of ours in the interpreter that runs this one."""
    return (sys.executable, "-m", *arguments)
