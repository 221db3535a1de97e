"""Whether this gateway can serve: an engine is there, the store has answered, and it is not shutting down."""

from collections.abc import Callable


class Readiness:
    """`has_engine` tells whether any engine is connected now."""

    def __init__(self, has_engine: Callable[[], bool]) -> None:
        self._has_engine = has_engine
        self.store_answered = False
        self._store_trouble = "the store has not answered yet"
        self._closing = False

    def note_store_trouble(self, reason: str) -> None:
        """Why the store cannot be used yet."""
        self._store_trouble = reason

    def note_store_answered(self) -> None:
        """The store has answered; a later outage does not end service of what is cached."""
        self.store_answered = True

    def close(self) -> None:
        """From now on this gateway asks for no more requests."""
        self._closing = True

    @property
    def missing(self) -> str | None:
        """What keeps this gateway from serving, or None."""
        if self._closing:
            return "shutting down"
        if not self.store_answered:
            return self._store_trouble
        return None if self._has_engine() else "no engine is connected"
