"""Keeps the ledger in shape: partitions ahead of time, and none longer than its operator wants.

Every gateway process does so, and so none has to lead: each step does nothing where nothing is to be done.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.logs import Trouble
from gateway.usage import queries
from gateway.usage.tables import usage_event, usage_rollup_day, usage_rollup_minute

DAYS_AHEAD: Final = 7
EVERY_SECONDS: Final = 3_600.0
AGAIN_AFTER_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How many days the ledger goes back at least, single requests and sums."""

    event_days: int = 90
    minute_days: int = 30
    day_days: int = 400


async def maintain(connection: AsyncConnection, retention: Retention) -> None:
    """Makes the partitions of the next days and drops those that are no longer kept."""
    await queries.make_partitions(connection, days_ahead=DAYS_AHEAD)
    await queries.drop_old(connection, usage_event, keep_days=retention.event_days)
    await queries.drop_old(connection, usage_rollup_minute, keep_days=retention.minute_days)
    await queries.drop_old(connection, usage_rollup_day, keep_days=retention.day_days)


class LedgerUpkeep:
    """The task that does so every hour. One per gateway process."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._retention = retention
        self._task: asyncio.Task[None] | None = None
        self._trouble = Trouble(logger, "the ledger's partitions are not kept up")

    async def start(self) -> None:
        """Begins, with a first round at once."""
        self._task = asyncio.create_task(self._maintain_for_ever(), name="upkeep of the ledger")

    async def stop(self) -> None:
        """Stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _maintain_for_ever(self) -> None:
        while True:
            try:
                async with self._database.system_transaction() as connection:
                    await maintain(connection, self._retention)
            except Exception as error:  # the next round tries again
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
                await asyncio.sleep(AGAIN_AFTER_SECONDS)
            else:
                self._trouble.end()
                await asyncio.sleep(EVERY_SECONDS)
