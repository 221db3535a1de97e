"""One life of a gateway process in the store: its epoch, and the lock that shows others that it goes on.

Postgres lets go of the lock in the moment the process is killed; a process that is merely slow keeps it.
"""

import asyncio
import logging
from contextlib import suppress

from sqlalchemy import text

from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.logs import Trouble
from gateway.quotas import queries as quotas
from gateway.rhythm import Rhythm

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class Life:
    """Begun by `begin`; `keep` holds its lock, taking it again whenever its connection was lost."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._epoch: int | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._rhythm = Rhythm()
        self._trouble = Trouble(logger, "the lock that shows others that this process lives is lost")

    @property
    def epoch(self) -> int:
        """The number of this life; no other life ever had or gets it."""
        assert self._epoch is not None, "not begun"
        return self._epoch

    async def begin(self) -> int:
        """A new life. Raises StoreUnavailable."""
        async with self._database.system_transaction() as connection:
            self._epoch = await quotas.register_replica(connection, self._name)
        held = asyncio.Event()
        self._keeping = asyncio.create_task(self._keep(self._epoch, held), name="life in the store")
        await held.wait()
        return self._epoch

    async def end(self, *, holds_nothing: bool) -> None:
        """The life is over; what it still holds is for others to close."""
        await self.let_go()
        if self._epoch is None:
            return
        with suppress(StoreUnavailable):
            async with self._database.system_transaction() as connection:
                if holds_nothing:
                    await quotas.forget_life(connection, epoch=self._epoch)
                else:
                    await quotas.end_life(connection, epoch=self._epoch)

    async def let_go(self) -> None:
        """The lock is let go, as if the process were gone."""
        self._rhythm.stop()
        if self._keeping is not None:
            await asyncio.wait({self._keeping})

    async def _keep(self, epoch: int, held: asyncio.Event) -> None:
        async for _ in self._rhythm.turns(LOOK_SECONDS):
            try:
                async with self._database.session() as connection:
                    await quotas.hold_life(connection, epoch=epoch)
                    held.set()
                    self._trouble.end()
                    async for _ in self._rhythm.turns(LOOK_SECONDS):
                        await connection.execute(text("SELECT 1"))
            except StoreUnavailable as error:
                self._trouble.note(error, is_foreseeable=True)
            held.set()  # the store went away in between: it is taken as soon as that is back
