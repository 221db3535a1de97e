"""Counts the open event streams of each session, so that one browser cannot hold all connections.

Knows counts only: no session data, no HTTP.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MAX_STREAMS_PER_SESSION: Final = 4  # pages share one stream per browser; the rest is for reloads under way


class StreamCount:
    """How many streams each session has open."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def is_full(self, session: str) -> bool:
        """Whether the session must close a stream before it opens another."""
        return self._open[session] >= MAX_STREAMS_PER_SESSION

    @contextmanager
    def opened(self, session: str) -> Iterator[None]:
        """Counts one stream for as long as the block runs."""
        self._open[session] += 1
        try:
            yield
        finally:
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]
