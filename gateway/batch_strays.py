"""Finds lines that are leased to this process, and that nobody in it knows of: nobody would ever run them.

The answer to a claim may be lost while the claim takes effect, even later than that. A line is a stray when
two looks in a row find it unknown: one look may come between its end and the news of it.
"""

from collections.abc import Set
from typing import Final

from gateway.batch_claiming import BatchClaiming
from gateway.batches.ids import LeaseKey

LOOK_SECONDS: Final = 10.0


class Strays:
    """For one worker. Times are the loop's."""

    def __init__(self, claiming: BatchClaiming, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._claiming = claiming
        self._look_seconds = look_seconds
        self._unknown: Set[LeaseKey] = frozenset()
        self._next_look_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether it is time to look."""
        return now >= self._next_look_at

    async def give_back(self, known: Set[LeaseKey], *, now: float) -> None:
        """Looks, and gives back what it did not know the last time either. Raises StoreUnavailable."""
        self._next_look_at = now + self._look_seconds
        unknown = {one.lease: one for one in await self._claiming.leased() if one.lease not in known}
        strays = [one for lease, one in unknown.items() if lease in self._unknown]
        self._unknown = unknown.keys()
        if strays:
            await self._claiming.give_back(strays)
