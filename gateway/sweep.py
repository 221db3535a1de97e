"""Looks for lives that ended without closing their accounts, and closes them."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from gateway.closing import EndLife, charge_late, close_life
from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.logs import Trouble
from gateway.quotas import queries as quotas
from gateway.rhythm import Rhythm
from gateway.usage.journal_lives import Life as JournalLife
from gateway.usage.journal_lives import abandoned, release, remove, replay

SWEEP_SECONDS: Final = 0.5
DEAD_AFTER_SECONDS: Final = 1.5

logger = logging.getLogger(__name__)


class Sweeper:
    """One per gateway process; several may see the same dead life, and one of them closes it."""

    def __init__(
        self,
        database: Database,
        end_life: EndLife,
        *,
        sweep_seconds: float = SWEEP_SECONDS,
        dead_after_seconds: float = DEAD_AFTER_SECONDS,
    ) -> None:
        self._database = database
        self._end_life = end_life
        self._journal_dir: Path | None = None
        self._looks_for_journals = False
        self._sweep_seconds = sweep_seconds
        self._dead_after_seconds = dead_after_seconds
        self._store_seen_since: float | None = None  # loop time; None while the store is away
        self._rhythm = Rhythm()
        self._trouble = Trouble(logger, "dead gateways are not looked for")

    def stop(self) -> None:
        """The sweep that is under way is the last."""
        self._rhythm.stop()

    async def run(self, *, own_epoch: int, journal_dir: Path | None = None) -> None:
        """Sweeps until it is stopped. `journal_dir` holds the journals of this store's lives on this host."""
        self._journal_dir = journal_dir
        self._looks_for_journals = journal_dir is not None
        async for _ in self._rhythm.turns(self._sweep_seconds):
            try:
                await self._sweep(own_epoch)
            except Exception as error:  # the next one tries again
                self._store_seen_since = None
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
            else:
                self._trouble.end()

    async def _sweep(self, own_epoch: int) -> None:
        """After an outage of the store all look dead: only one who saw it all that time may judge."""
        now = asyncio.get_running_loop().time()
        if self._store_seen_since is None:
            self._store_seen_since = now
        may_judge = now - self._store_seen_since >= self._dead_after_seconds
        async with self._database.system_transaction() as connection:
            ended = await quotas.ended_lives(
                connection,
                own=own_epoch,
                dead_after_seconds=self._dead_after_seconds if may_judge else None,
            )
            unfinished = await quotas.unfinished_lives(connection)
        journals = self._abandoned_journals() if ended or self._looks_for_journals else {}
        self._looks_for_journals = False
        try:
            for epoch in ended:
                journal = journals.get(epoch)
                is_closed = await close_life(
                    self._database, epoch, self._end_life, None if journal is None else replay(journal)
                )
                if is_closed and journal is not None:
                    remove(journals.pop(epoch))
            for epoch in journals.keys() - unfinished:  # closed by others, who had not this journal
                await charge_late(self._database, epoch, replay(journals[epoch]))
                remove(journals.pop(epoch))
        finally:
            for journal in journals.values():
                release(journal)

    def _abandoned_journals(self) -> dict[int, JournalLife]:
        """Of dead processes of this host, by epoch; nobody else replays them meanwhile."""
        if self._journal_dir is None:
            return {}
        return {life.epoch: life for life in abandoned(self._journal_dir)}
