"""One process among many does something: the one that holds a lock of the store.

The lock lasts as long as its connection. Postgres lets go of it for whoever is killed, and another process
takes it a moment later; who lost the connection leads no more. For a moment two may believe that they lead:
what a leader does must be safe then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import Database
from gateway.errors import FileStoreUnavailable, StoreUnavailable
from gateway.logs import Trouble
from gateway.rhythm import Rhythm

LEADER_LOCKS: Final = 0x51_01DE  # first half of the advisory lock
TRY_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Duty:
    """What the leader does again and again. A turn is given the term, after whose end it should not go on."""

    trouble: str  # what is amiss when a turn fails: the log says so once, and the next turn tries again
    every_seconds: float
    again_after_seconds: float = 0.0  # longer than a turn takes to come, where it is dear to fail again
    turn: Callable[[Rhythm], Awaitable[None]]


class Leadership:
    """Leads, or waits to. `duties` makes those of one term; `lock` is a number of what is led."""

    def __init__(
        self,
        database: Database,
        lock: int,
        duties: Callable[[], Sequence[Duty]],
        *,
        try_seconds: float = TRY_SECONDS,
    ) -> None:
        self._database = database
        self._key = {"leader_locks": LEADER_LOCKS, "lock": lock}
        self._duties = duties
        self._try_seconds = try_seconds
        self._rhythm = Rhythm()
        self._term = Rhythm()
        self._task: asyncio.Task[None] | None = None
        self._trouble = Trouble(logger, "nobody can be made the leader")

    async def start(self) -> None:
        """Begins to try."""
        self._task = asyncio.create_task(self._try_for_ever(), name="leadership")

    async def stop(self) -> None:
        """Leads no more once what is under way is done; another process may."""
        self._rhythm.stop()
        self._term.stop()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _try_for_ever(self) -> None:
        async for _ in self._rhythm.turns(self._try_seconds):
            try:
                async with self._database.session() as connection:
                    await self._try(connection)
                self._trouble.end()
            except Exception as error:  # the next turn tries again
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))

    async def _try(self, connection: AsyncConnection) -> None:
        take = text("SELECT pg_try_advisory_lock(:leader_locks, :lock)")
        if not await connection.scalar(take, self._key):
            return
        self._trouble.end()
        try:
            await self._lead(connection)
        finally:
            await self._let_go(connection)

    async def _let_go(self, connection: AsyncConnection) -> None:
        """With the lock, or else with the connection: no pool may keep what holds it."""
        try:
            await connection.execute(text("SELECT pg_advisory_unlock(:leader_locks, :lock)"), self._key)
        except Exception:  # whatever it was: the next term tells, if it lasts
            await connection.invalidate()

    async def _lead(self, connection: AsyncConnection) -> None:
        """Does its duties until it is stopped, or the connection that holds the lock is lost."""
        self._term = term = Rhythm()
        if self._rhythm.is_over:
            return
        work = [asyncio.create_task(_do(duty, term), name=duty.trouble) for duty in self._duties()]
        try:
            async for _ in term.turns(LOOK_SECONDS):
                await connection.execute(text("SELECT 1"))
        finally:
            term.stop()
            await asyncio.gather(*work)


async def _do(duty: Duty, term: Rhythm) -> None:
    trouble = Trouble(logger, duty.trouble)
    async for _ in term.turns(duty.every_seconds):
        try:
            await duty.turn(term)
        except Exception as error:  # the next turn tries again
            foreseeable = isinstance(error, StoreUnavailable | FileStoreUnavailable)
            trouble.note(error, is_foreseeable=foreseeable)
            await term.pause(duty.again_after_seconds)
        else:
            trouble.end()
