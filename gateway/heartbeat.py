"""One life of a gateway process in the store: its epoch, its heartbeat, and the lives of others that ended.

It knows who is dead; what their reservations come to is `metering`'s.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.quotas import queries as quotas

logger = logging.getLogger(__name__)


class Heartbeat:
    """Beats every `beat_seconds`; calls `on_dead(epoch)` for lives silent for `dead_after_seconds`."""

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        on_dead: Callable[[int], Awaitable[None]],
        beat_seconds: float,
        dead_after_seconds: float,
    ) -> None:
        self._database = database
        self._name = name
        self._on_dead = on_dead
        self._beat_seconds = beat_seconds
        self._dead_after_seconds = dead_after_seconds
        self._epoch: int | None = None
        self._beating: asyncio.Task[None] | None = None
        self._sweep: asyncio.Task[None] | None = None
        self._store_seen_since: float | None = None  # loop time; None while the store is away

    @property
    def epoch(self) -> int:
        """The number of this life; no other life ever had or gets it."""
        assert self._epoch is not None, "not started"
        return self._epoch

    async def start(self) -> None:
        """Registers this life. Raises StoreUnavailable."""
        async with self._database.transaction() as connection:
            self._epoch = await quotas.register_replica(connection, self._name)
        self._beating = asyncio.create_task(self._beat_for_ever())

    async def stop(self, *, holds_nothing: bool) -> None:
        """Ends this life. What it still holds is left for others to sweep."""
        for task in (self._beating, self._sweep):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if holds_nothing and self._epoch is not None:
            with suppress(StoreUnavailable):
                async with self._database.transaction() as connection:
                    await quotas.delete_replica(connection, epoch=self._epoch)

    async def _beat_for_ever(self) -> None:
        while True:
            try:
                dead = await self._beat()
            except StoreUnavailable as error:
                logger.warning("no heartbeat: %s", error)
                self._store_seen_since = None
            except Exception:  # a beat that fails once must not look like a death
                logger.exception("heartbeat failed")
            else:
                self._start_sweep(dead)
            await asyncio.sleep(self._beat_seconds)

    async def _beat(self) -> list[int]:
        async with self._database.transaction() as connection:
            await quotas.beat(connection, epoch=self.epoch, name=self._name)
            await quotas.forget_dead_replicas(connection, dead_after_seconds=self._dead_after_seconds)
            return await quotas.dead_epochs(connection, dead_after_seconds=self._dead_after_seconds)

    def _start_sweep(self, dead: list[int]) -> None:
        """After an outage of the store all look dead: only one who saw it all that time may judge."""
        now = asyncio.get_running_loop().time()
        if self._store_seen_since is None:
            self._store_seen_since = now
        judges = now - self._store_seen_since >= self._dead_after_seconds
        is_sweeping = self._sweep is not None and not self._sweep.done()
        if dead and judges and not is_sweeping:
            self._sweep = asyncio.create_task(self._sweep_all(dead))

    async def _sweep_all(self, dead: list[int]) -> None:
        for epoch in dead:
            try:
                await self._on_dead(epoch)
            except StoreUnavailable as error:
                logger.warning("epoch %d not swept: %s", epoch, error)
            except Exception:  # the next beat tries again
                logger.exception("epoch %d not swept", epoch)
