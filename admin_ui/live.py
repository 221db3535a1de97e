"""The live picture of all engines: looks at them every second and tells everyone who follows.

Knows what engines say of themselves and the last five minutes of it. Knows no HTTP, no HTML and no session.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from admin_ui.figures import EngineView, Totals, answering, engine_state, progress, totals
from engine.protocol import EngineDescription, EngineStatus
from gateway.engines.client import EngineAddress

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
HISTORY_SECONDS: Final = 300.0
MOVED_LATELY_SECONDS: Final = 3.0


class WatchedEngine(Protocol):
    """What the board reads of a connection to an engine."""

    @property
    def address(self) -> EngineAddress:
        """Where the engine listens."""

    @property
    def connected(self) -> bool:
        """Whether the engine answers on an open connection."""

    @property
    def description(self) -> EngineDescription | None:
        """What the engine serves, once it has said so."""

    @property
    def status(self) -> EngineStatus | None:
        """The newest status, a new object each time one comes."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The sums at one moment (monotonic seconds)."""

    at: float
    totals: Totals


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All engines at one moment (monotonic seconds), and the last five minutes, oldest sample first."""

    at: float
    engines: tuple[EngineView, ...]
    history: tuple[Sample, ...]


@dataclass
class _Memory:
    """When an engine last spoke and last stepped."""

    status: EngineStatus | None = None
    heard_at: float | None = None
    moved_at: float | None = None

    def notice(self, status: EngineStatus | None, now: float) -> None:
        if status is None or status is self.status:
            return
        if self.status is not None and status.step != self.status.step:
            self.moved_at = now
        self.status, self.heard_at = status, now


class LiveBoard:
    """Turns what the connections to the engines hold into snapshots."""

    def __init__(
        self, engines: Callable[[], Sequence[WatchedEngine]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engines = engines  # called each time: addresses behind a host name come and go
        self._clock = clock
        self._memories: dict[EngineAddress, _Memory] = {}
        self._history: deque[Sample] = deque()

    def observe(self) -> Snapshot:
        """Looks at every engine and adds one sample to the history."""
        now = self._clock()
        engines = self._engines()
        self._memories = {engine.address: self._memories.get(engine.address, _Memory()) for engine in engines}
        views = tuple(self._view(engine, now) for engine in engines)
        self._history.append(Sample(at=now, totals=totals(answering(views))))
        while self._history[0].at < now - HISTORY_SECONDS:
            self._history.popleft()
        return Snapshot(at=now, engines=views, history=tuple(self._history))

    def _view(self, engine: WatchedEngine, now: float) -> EngineView:
        memory = self._memories[engine.address]
        memory.notice(engine.status, now)
        silent_seconds = None if memory.heard_at is None else now - memory.heard_at
        has_moved_lately = memory.moved_at is not None and now - memory.moved_at <= MOVED_LATELY_SECONDS
        return EngineView(
            address=engine.address.name,
            state=engine_state(memory.status, is_connected=engine.connected, silent_seconds=silent_seconds),
            progress=progress(memory.status, has_moved_lately=has_moved_lately),
            description=engine.description,
            status=memory.status,
            silent_seconds=silent_seconds,
        )


class Broadcaster:
    """Hands the newest snapshot to all followers. A slow one skips what it missed and delays nobody."""

    def __init__(self, first: Snapshot) -> None:
        self._latest = first
        self._changed = asyncio.Event()
        self.is_closed = False

    @property
    def latest(self) -> Snapshot:
        """The newest snapshot."""
        return self._latest

    def publish(self, snapshot: Snapshot) -> None:
        """Makes this the newest snapshot and wakes the followers."""
        self._latest = snapshot
        self._wake()

    def close(self) -> None:
        """Ends every follower at once, and every later one before it begins."""
        self.is_closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[Snapshot]:
        """The newest snapshot now, and again whenever there is a newer one, until the end."""
        while not self.is_closed:
            changed = self._changed
            yield self._latest
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def keep_publishing(board: LiveBoard, broadcaster: Broadcaster) -> None:
    """Publishes a snapshot every second until it is cancelled; one that fails costs that second only."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        try:
            broadcaster.publish(board.observe())
        except Exception:
            logger.exception("the live picture could not be drawn")
