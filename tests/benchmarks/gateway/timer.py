"""When an answer's tokens are due: some time to the first, then one at each beat, or all at once. No network.

All answers share one beat, as sequences share an engine's steps. The beat's times are fixed in advance, so
that a late one delays none after it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

Emit = Callable[[int, bool], None]
"""Told how many tokens are due now, and whether they are the last."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """`token_seconds` 0: the whole answer comes with its first token."""

    first_seconds: float
    token_seconds: float = 0.0


class Timed:
    """One answer under way."""

    def __init__(self, num_tokens: int, emit: Emit) -> None:
        self.num_left = num_tokens
        self.timer: asyncio.TimerHandle | None = None
        self._emit = emit

    @property
    def is_over(self) -> bool:
        """Nothing is due any more."""
        return self.num_left == 0

    def emit(self, count: int) -> None:
        """So many tokens are due now."""
        self.num_left -= count
        self._emit(count, self.is_over)


class Timer:
    """Answers at one pace, on the running loop."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._streaming: dict[Timed, None] = {}
        self._next_beat: float | None = None  # the loop's time; None while nothing streams

    def begin(self, num_tokens: int, emit: Emit) -> Timed:
        """Begins an answer of at least one token."""
        timed = Timed(num_tokens, emit)
        loop = asyncio.get_running_loop()
        if self._pace.first_seconds > 0:
            timed.timer = loop.call_later(self._pace.first_seconds, self._first, timed)
        else:
            loop.call_soon(self._first, timed)
        return timed

    def cancel(self, timed: Timed) -> None:
        """Nothing more of this answer."""
        timed.num_left = 0
        if timed.timer is not None:
            timed.timer.cancel()
        self._streaming.pop(timed, None)

    def _first(self, timed: Timed) -> None:
        if timed.is_over:  # cancelled before its turn
            return
        timed.emit(1 if self._pace.token_seconds else timed.num_left)
        if not timed.is_over:
            self._streaming[timed] = None
            self._keep_beating()

    def _keep_beating(self) -> None:
        if self._next_beat is None:
            loop = asyncio.get_running_loop()
            self._next_beat = loop.time() + self._pace.token_seconds
            loop.call_at(self._next_beat, self._beat)

    def _beat(self) -> None:
        for timed in list(self._streaming):
            timed.emit(1)
            if timed.is_over:
                del self._streaming[timed]
        if not self._streaming:
            self._next_beat = None
            return
        assert self._next_beat is not None
        self._next_beat += self._pace.token_seconds
        asyncio.get_running_loop().call_at(self._next_beat, self._beat)
