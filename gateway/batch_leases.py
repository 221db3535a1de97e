"""Ends the leases of workers that are gone: their items are run again, or given up.

An item is leased to a life of a gateway process. A life is over when the store says so (`gateway/sweep.py`
ends the life of whoever let go of its lock), and its items go back within a second or two. Whoever holds its
lock, and has not beaten for long, stands still or is cut off: waiting for it would hold up its items for
ever, so they go back too. Should it come round after all, it finds that the leases are not its own any more,
and records nothing: only its work is in vain.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

from gateway.batches import endings
from gateway.batches.attempts import is_hopeless, pause_seconds
from gateway.batches.endings import ItemBack, ItemGivenUp, LostItem
from gateway.batches.ids import request_id_of
from gateway.batches.output_line import answered, server_error_body
from gateway.db import Database
from gateway.errors import InternalError
from gateway.quotas import queries as quotas
from gateway.rhythm import Rhythm

SILENT_SECONDS: Final = 30.0
MOST_BATCHES: Final = 100
MOST_ITEMS: Final = 1_000  # in one transaction

logger = logging.getLogger(__name__)


class DeadLeases:
    """The duty of one term."""

    def __init__(self, database: Database, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._database = database
        self._silent_seconds = silent_seconds
        self._store_seen_since: float | None = None  # loop time; None while the store is away

    async def turn(self, term: Rhythm) -> None:
        """Ends those that there are."""
        try:
            while not term.is_over and await self._end_some():
                pass
        except Exception:
            self._store_seen_since = None
            raise

    async def _end_some(self) -> bool:
        """Whether there were any."""
        silent_seconds = self._silence_that_counts()
        async with self._database.system_transaction() as connection:
            leasing = await endings.leasing_epochs(connection)
            over = await quotas.lives_over(connection, leasing, silent_seconds=silent_seconds)
            if not over:
                return False
            lost = await endings.lock_lost(connection, over, most_batches=MOST_BATCHES, most_items=MOST_ITEMS)
            back, given_up = _judged(lost)
            if back:
                await endings.put_back(connection, back)
            if given_up:
                await endings.give_up(connection, given_up)
        _tell(back, given_up)
        return bool(lost)

    def _silence_that_counts(self) -> float | None:
        """After an outage of the store all are silent: only one who saw it all that time may judge."""
        now = asyncio.get_running_loop().time()
        if self._store_seen_since is None:
            self._store_seen_since = now
        return self._silent_seconds if now - self._store_seen_since >= self._silent_seconds else None


def _judged(lost: Sequence[LostItem]) -> tuple[list[ItemBack], list[ItemGivenUp]]:
    back = [
        ItemBack(item=item, pause_seconds=pause_seconds(item.attempt, random.random()))  # noqa: S311 - no secret
        for item in lost
        if not is_hopeless(item.attempt)
    ]
    given_up = [ItemGivenUp(item=item, body=_last_words(item)) for item in lost if is_hopeless(item.attempt)]
    return back, given_up


def _last_words(item: LostItem) -> str:
    """Its line in the error file."""
    request_id = request_id_of(item.batch, item.line)
    message = (
        f"This request was given up after {item.attempt} attempts: each time the server that ran it died."
    )
    return answered(
        request_id,
        item.custom_id,
        http_request_id=request_id,
        status=InternalError.status,
        body=server_error_body(message),
    )


def _tell(back: Sequence[ItemBack], given_up: Sequence[ItemGivenUp]) -> None:
    if back:
        logger.warning("%d items of batches go back: the processes that ran them are gone", len(back))
    for given in given_up:
        logger.error("line %d of %s is given up", given.item.line, given.item.batch)
