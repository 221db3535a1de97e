"""What one connection has yet to be told. Never blocks the step, and never grows without bound."""

import asyncio

from engine.protocol import EngineMessage, EngineStatus, SequenceEvent, StepEvents, TokenDelta


class Outbox:
    """Collects events until the connection can take a frame.

    Deltas of one request are joined while they wait, and only the newest status is kept, so a slow reader
    costs at most one delta and one last event for each of its live requests. Used on the server's event loop.
    """

    def __init__(self) -> None:
        self._events: dict[str, list[SequenceEvent]] = {}
        self._messages: list[EngineMessage] = []
        self._status: EngineStatus | None = None
        self._step = 0
        self._filled = asyncio.Event()

    def add_event(self, step: int, event: SequenceEvent) -> None:
        """Adds what a step brought for one request."""
        self._step = step
        waiting = self._events.setdefault(event.id, [])
        if waiting and isinstance(event, TokenDelta) and isinstance(waiting[-1], TokenDelta):
            joined = waiting[-1].token_ids + event.token_ids
            waiting[-1] = TokenDelta(id=event.id, token_ids=joined)
        else:
            waiting.append(event)
        self._filled.set()

    def add_message(self, message: EngineMessage) -> None:
        """Adds a message that is neither an event nor a status."""
        self._messages.append(message)
        self._filled.set()

    def set_status(self, status: EngineStatus) -> None:
        """Replaces the status that waits, if one does."""
        self._status = status
        self._filled.set()

    async def take(self) -> list[EngineMessage]:
        """Everything that waits, as few messages as possible; waits until there is something."""
        await self._filled.wait()
        self._filled.clear()
        messages, self._messages = self._messages, []
        if self._events:
            events = tuple(event for waiting in self._events.values() for event in waiting)
            messages.append(StepEvents(step=self._step, events=events))
            self._events = {}
        if self._status is not None:
            messages.append(self._status)
            self._status = None
        return messages
