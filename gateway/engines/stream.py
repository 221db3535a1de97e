"""The events of one request at an engine, buffered until its reader takes them. Knows no socket."""

import asyncio
from dataclasses import dataclass

from engine.protocol import Failed, Finished, GenerateRequest, Refused, TokenDelta


@dataclass(frozen=True)
class EngineLost:
    """The connection to the engine ended before the request did."""


@dataclass(frozen=True)
class Interrupted:
    """This process ends the request because it shuts down."""


StreamEvent = TokenDelta | Finished | Refused | Failed | EngineLost | Interrupted


class EngineStream:
    """What happens to one request, in order. The last event is a Finished, Refused, Failed or EngineLost.

    It lives from before the request is at an engine, so what happens while it waits is an event too; until
    then `request` may be exchanged. One reader. The buffer holds at most the request's own output, so a slow
    reader costs memory but blocks nobody.
    """

    __slots__ = ("_buffer", "_waiter", "ended", "request")

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.ended = False
        self._buffer: list[StreamEvent] = []
        self._waiter: asyncio.Future[None] | None = None

    def push(self, event: StreamEvent) -> None:
        """Adds an event and wakes the reader."""
        self._buffer.append(event)
        self.ended = self.ended or not isinstance(event, TokenDelta | Interrupted)
        _wake(self._waiter)

    async def take(self, *, until: float) -> list[StreamEvent]:
        """All events since the last call; waits for one until the loop's time `until`, then returns none."""
        if not self._buffer:
            await self._wait(until)
        return self.take_now()

    def take_now(self) -> list[StreamEvent]:
        """All events since the last call, without waiting."""
        events, self._buffer = self._buffer, []
        return events

    async def _wait(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_at(until, _wake, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
