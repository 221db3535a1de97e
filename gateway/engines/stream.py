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

    __slots__ = (
        "_buffer",
        "_is_urgent",
        "_num_tokens",
        "_num_wanted",
        "_waiter",
        "ended",
        "first_token_at",
        "request",
    )

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.ended = False
        self.first_token_at: float | None = None  # in the loop's time
        self._buffer: list[StreamEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._num_tokens = 0  # in the buffer; engines join deltas, so these say nothing of how many there are
        self._num_wanted = 1
        self._is_urgent = False  # whether something else than tokens is in the buffer

    def push(self, event: StreamEvent) -> None:
        """Adds an event, and wakes the reader if it waits for no more than that."""
        self._buffer.append(event)
        if isinstance(event, TokenDelta):
            self._num_tokens += len(event.token_ids)
            if self.first_token_at is None:
                self.first_token_at = asyncio.get_running_loop().time()
        else:
            self._is_urgent = True
            self.ended = self.ended or not isinstance(event, Interrupted)
        if self._has(self._num_wanted):
            _wake(self._waiter)

    async def take(self, *, until: float, num_tokens: int = 1) -> list[StreamEvent]:
        """All events since the last call. Waits for so many tokens, or for anything else than tokens; at the
        loop's time `until` it returns what there is.
        """
        if not self._has(num_tokens):
            self._num_wanted = num_tokens
            await self._wait(until)
        return self.take_now()

    def _has(self, num_tokens: int) -> bool:
        return self._is_urgent or self._num_tokens >= num_tokens

    def take_now(self) -> list[StreamEvent]:
        """All events since the last call, without waiting."""
        events, self._buffer = self._buffer, []
        self._num_tokens, self._is_urgent = 0, False
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
