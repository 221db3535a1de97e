"""Keeps the embedded Postgres of `sluice serve` running: one that dies is reported and started again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Self

from deploy import embedded_postgres
from deploy.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError

POLL_SECONDS = 0.5
LOCK_TIMEOUT_SECONDS = 2.0


class PostgresKeeper:
    """The server of one data directory, and its successors; they all have the same URL."""

    def __init__(self, data_dir: Path, server: EmbeddedPostgres, say: Callable[[str], None]) -> None:
        self._data_dir = data_dir
        self._server = server
        self._say = say
        self._watch = asyncio.create_task(self._keep_alive())

    @classmethod
    async def start(cls, data_dir: Path, say: Callable[[str], None]) -> Self:
        """Starts the server; raises EmbeddedPostgresError. A start that is cancelled leaves none behind."""
        starting = asyncio.ensure_future(asyncio.to_thread(_start, data_dir))
        try:
            server = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.to_thread((await starting).stop)
            raise
        return cls(data_dir, server, say)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._server.url

    async def stop(self) -> None:
        """Stops the server and waits until it is gone."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await asyncio.to_thread(self._server.stop)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self._server.has_died():
                self._say("Postgres died; starting it again")
                await self._restart()

    async def _restart(self) -> None:
        await asyncio.to_thread(self._server.stop)
        try:
            self._server = await asyncio.to_thread(_start, self._data_dir)
        except EmbeddedPostgresError as error:
            self._say(f"Postgres does not start: {error}")  # and the next round tries again


def _start(data_dir: Path) -> EmbeddedPostgres:
    return embedded_postgres.start(data_dir, lock_timeout_seconds=LOCK_TIMEOUT_SECONDS)
