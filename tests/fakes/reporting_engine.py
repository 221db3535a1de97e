"""An engine that only reports: in a thread of its own it says several times a second what a test sets."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from engine.protocol import EngineDescription
from tests.builders.engine_messages import engine_description, engine_status
from tests.fakes.websocket_engine import WebSocketEngine, hold

REPORTS_EVERY_SECONDS = 0.2


class ReportingEngine:
    """A context manager; `say` changes what is reported from then on. Its step counter moves by itself."""

    def __init__(self, *, secret: str, description: EngineDescription | None = None) -> None:
        self._engine = WebSocketEngine(description or engine_description(), hold, secret=secret)
        self._said: dict[str, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._reporting: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the admin UI connects."""
        return self._engine.url

    def say(self, **changes: Any) -> None:
        """Reports these figures from now on."""
        self._said = {**self._said, **changes}

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait_for(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._wait_for(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait_for(self, action: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(10)

    async def _start(self) -> None:
        await self._engine.start()
        self._reporting = asyncio.create_task(self._report())

    async def _stop(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        await self._engine.stop()

    async def _report(self) -> None:
        step = 0
        while True:
            step += 1
            self._engine.send_message(engine_status(**{"step": step, **self._said}))
            await asyncio.sleep(REPORTS_EVERY_SECONDS)
