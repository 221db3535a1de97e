"""The gateway's composition root: builds every part, gives it what it needs, starts and stops all of them."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from engine.protocol import EngineDescription
from gateway.api.application import build_application
from gateway.api.entrance import Entrance
from gateway.api.management import Management
from gateway.api.readiness import Readiness
from gateway.api.services import STATE_KEY, Services
from gateway.batching import Batching
from gateway.config_follower import ConfigFollower
from gateway.db import Database
from gateway.dispatch import Dispatcher
from gateway.engine_history import EngineHistory
from gateway.engines.client import (
    EngineAddress,
    EngineClient,
    EngineIncompatibleError,
    Identity,
)
from gateway.engines.directory import EngineDirectory, LastRecords
from gateway.errors import JournalUnavailable, StoreUnavailable
from gateway.files.places import file_store
from gateway.filing import Filing
from gateway.generation import Generation
from gateway.keys.service import KeyService
from gateway.metering import Metering
from gateway.metrics import GatewayMetrics
from gateway.requests.catalogue import Catalogue
from gateway.settings import GatewaySettings
from gateway.store_schema import check_schema
from gateway.text.text_model import UnusableTextModelError
from gateway.usage.upkeep import LedgerUpkeep, Retention

logger = logging.getLogger(__name__)

STORE_RETRY_SECONDS: Final = 0.5
SETTLED_WITHIN_SECONDS: Final = 10.0


class Gateway:
    """One gateway process. `begin_shutdown` may be called before `stop`, to drain first."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._replica = f"{socket.gethostname()}:{os.getpid()}"
        self._database = Database.connect(
            settings.database_url,
            application_name="sluice gateway",
            pool_size=settings.gateway.database_pool_size,
        )
        key_pepper = bytes.fromhex(settings.secrets.key_pepper)
        self._management = Management.connect(settings.database_url, key_pepper)
        self._keys = KeyService(self._database, key_pepper)
        metrics = GatewayMetrics(CollectorRegistry())
        self._metering = Metering(
            self._database,
            self._replica,
            self._end_life,
            journal_dir=settings.gateway.journal_dir,
            on_ended=lambda: signal.raise_signal(signal.SIGTERM),
            on_store_answer=metrics.store_up.set,
        )
        self._catalogue = Catalogue()
        self._directory = EngineDirectory(settings.gateway.engines, self._make_client)
        self._config = ConfigFollower(self._database, self._directory)
        self._history = EngineHistory(self._database, lambda: self._directory.clients)
        self._upkeep = LedgerUpkeep(
            self._database,
            Retention(
                event_days=settings.gateway.usage_event_days, minute_days=settings.gateway.usage_minute_days
            ),
        )
        self._dispatcher = Dispatcher(
            self._directory, metrics, max_queued=settings.gateway.max_queued_requests
        )
        self._generation = Generation(
            ledger=self._metering,
            dispatcher=self._dispatcher,
            metrics=metrics,
            in_flight=metrics.in_flight,
            namespace_secret=bytes.fromhex(settings.secrets.cache_namespace),
        )
        self._filing = Filing(self._database, file_store(settings.files), settings.files)
        self._readiness = Readiness(lambda: any(client.connected for client in self._directory.clients))
        self._batching = Batching(
            settings,
            metering=self._metering,
            filing=self._filing,
            catalogue=self._catalogue,
            directory=self._directory,
            dispatcher=self._dispatcher,
            metrics=metrics,
        )
        self._beginning: asyncio.Task[None] | None = None
        self.services = Services(
            keys=self._keys,
            catalogue=self._catalogue,
            generation=self._generation,
            filing=self._filing,
            readiness=self._readiness,
            metrics=metrics,
            management=self._management,
            database=self._database,
            settings=settings.gateway,
        )

    async def start(self) -> None:
        """Begins to serve what can be served; `/readyz` tells when that is everything."""
        self._beginning = asyncio.create_task(self._begin())

    def begin_shutdown(self) -> None:
        """Asks for no more requests, and ends those still running after the drain time."""
        self._readiness.close()
        asyncio.get_running_loop().call_later(
            self._settings.gateway.drain_seconds, self._generation.interrupt
        )

    async def stop(self) -> None:
        """Ends what is still running, settles everything and closes every connection."""
        self._readiness.close()
        self._generation.interrupt()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_WITHIN_SECONDS):
                await self._generation.settled()
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        await self._batching.stop()
        await self._upkeep.stop()
        await self._history.stop()
        await self._config.stop()
        await self._directory.stop()
        if self._readiness.store_answered:
            await self._metering.stop()
        await self._keys.stop()
        self._filing.close()
        await self._management.database.close()
        await self._database.close()

    async def _begin(self) -> None:
        """Registers this life with the store, however long that takes; engines are greeted by its number.

        A store with another schema than this code needs is waited for as well: it may be migrated meanwhile.
        """
        told = None
        while (trouble := await self._try_to_begin()) is not None:
            if str(trouble) != told:  # once, however often it is tried
                is_foreseeable = isinstance(trouble, JournalUnavailable | StoreUnavailable)
                logger.warning("not ready yet: %s", trouble, exc_info=None if is_foreseeable else trouble)
                told = str(trouble)
            await asyncio.sleep(STORE_RETRY_SECONDS)
        self._readiness.note_store_answered()
        await self._keys.start()
        await self._config.start()
        await self._directory.start()
        await self._history.start()
        await self._upkeep.start()
        await self._batching.start()

    async def _try_to_begin(self) -> Exception | None:
        """What keeps this life from beginning, if anything does."""
        try:
            await check_schema(self._database)
            await self._metering.start()
        except (JournalUnavailable, StoreUnavailable) as error:
            self._readiness.note_store_trouble(error.message)
            return error
        except Exception as error:  # whatever it is, it may be over a moment later
            self._readiness.note_store_trouble("the store cannot be used; the log says why")
            return error
        return None

    def _make_client(self, address: EngineAddress) -> EngineClient:
        identity = Identity(
            replica=self._replica,
            epoch=self._metering.epoch,
            shared_secret=self._settings.secrets.engine_shared,
        )
        return EngineClient(
            address,
            identity,
            on_description=self._learn,
            configuration_of=self._config.newest,
            on_status=self._catalogue.follow,
            on_change=self._dispatcher.pump,
        )

    async def _learn(self, description: EngineDescription) -> None:
        try:
            await self._catalogue.learn(description)
        except UnusableTextModelError as error:
            raise EngineIncompatibleError(f"its model cannot be served: {error}") from error

    async def _end_life(self, epoch: int) -> LastRecords:
        return await self._directory.end_life(replica=self._replica, epoch=epoch)


def create_app(settings: GatewaySettings) -> Entrance:
    """The application of one worker. `framework.state.gateway` is its Gateway."""
    gateway = Gateway(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        await gateway.start()
        try:
            yield {STATE_KEY: gateway.services}
        finally:
            await gateway.stop()

    app = build_application(lifespan)
    app.framework.state.gateway = gateway
    return app
