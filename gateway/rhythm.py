"""Repeats something until it is told to stop; it stops between two turns, never in the middle of one.

A turn that talks to the store must not be cancelled: its connection would be in no known state.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress


class Rhythm:
    """Turns, `seconds` apart."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether no turn follows."""
        return self._stopping.is_set()

    async def turns(self, seconds: float) -> AsyncIterator[None]:
        """One item for each turn, the first at once."""
        while not self._stopping.is_set():
            yield
            await self.pause(seconds)

    async def pause(self, seconds: float) -> None:
        """Waits, but not beyond the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def stop(self) -> None:
        """The turn that is under way is the last."""
        self._stopping.set()
