"""Carries what operators order to the engines: follows the store's rows, tells whoever is connected.

It knows revisions and connections, and not what a configuration means. While the store is away the last known
configuration stays.
"""

import asyncio
import logging
from typing import Final

from engine.protocol import Configure
from gateway.db import Database
from gateway.engine_config import queries
from gateway.engines.directory import EngineDirectory
from gateway.errors import StoreUnavailable
from gateway.logs import Trouble

POLL_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


class ConfigFollower:
    """Every worker has one: an engine keeps the highest revision, whoever brings it and however often."""

    def __init__(self, database: Database, directory: EngineDirectory) -> None:
        self._database = database
        self._directory = directory
        self._newest: dict[str, Configure] = {}
        self._following: asyncio.Task[None] | None = None
        self._trouble = Trouble(logger, "changes of engines' configuration are not seen")

    def newest(self, model: str) -> Configure | None:
        """What an engine of the model is to be told as soon as it is connected, if anything."""
        return self._newest.get(model)

    async def start(self) -> None:
        """Looks once, so that the first engine is told at once, and begins to follow."""
        await self._look()
        self._following = asyncio.create_task(self._follow(), name="configuration of engines")

    async def stop(self) -> None:
        """Stops following."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self._look()

    async def _look(self) -> None:
        try:
            await self._poll()
        except Exception as error:  # following must not end because one poll did
            self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
        else:
            self._trouble.end()

    async def _poll(self) -> None:
        known = {model: newest.revision for model, newest in self._newest.items()}
        async with self._database.system_transaction() as connection:
            newer = await queries.newer_than(connection, known)
        for desired in newer:
            self._newest[desired.model] = desired.message
            logger.info("configuration %d of %s", desired.revision, desired.model)
            for client in self._directory.serving(desired.model):
                client.configure(desired.message)
