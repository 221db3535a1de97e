"""A gateway over real HTTP with a scripted engine over a real WebSocket, and no store."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from gateway.api.application import build_application
from gateway.api.management import Management
from gateway.api.readiness import Readiness
from gateway.api.services import STATE_KEY, Services
from gateway.db import Database
from gateway.dispatch import Dispatcher
from gateway.engines.client import EngineAddress, EngineClient, Identity
from gateway.engines.directory import EngineDirectory
from gateway.files.absent_store import AbsentFileStore
from gateway.filing import Filing
from gateway.generation import Generation
from gateway.metrics import GatewayMetrics
from gateway.requests.catalogue import Catalogue
from gateway.settings import FilesSection, GatewaySection
from tests.builders.engine_messages import engine_description
from tests.builders.http_clients import http_client, openai_client
from tests.fakes.http_server import serving
from tests.fakes.keys import GOOD_KEY, FakeKeys
from tests.fakes.ledger import FakeLedger
from tests.fakes.websocket_engine import WebSocketEngine, hold

NO_STORE = "postgresql://nobody@127.0.0.1:9/nothing"


class GatewayUnderTest:
    """A composed gateway: all real but the store. `url` answers while it is served."""

    def __init__(self, engine: WebSocketEngine, settings: GatewaySection) -> None:
        self.engine = engine
        self.keys = FakeKeys()
        self.ledger = FakeLedger()
        self.url = ""
        self.catalogue = Catalogue()
        self.directory = EngineDirectory([engine.url], self._make_client)
        self.readiness = Readiness(lambda: any(client.connected for client in self.directory.clients))
        self._changed = asyncio.Event()
        self.registry = CollectorRegistry()
        metrics = GatewayMetrics(self.registry)
        self.dispatcher = Dispatcher(self.directory, metrics, max_queued=settings.max_queued_requests)
        self.generation = Generation(
            ledger=self.ledger,
            dispatcher=self.dispatcher,
            metrics=metrics,
            in_flight=metrics.in_flight,
            namespace_secret=b"secret",
        )
        self.services = Services(
            keys=self.keys,
            catalogue=self.catalogue,
            generation=self.generation,
            filing=Filing(
                Database.connect(NO_STORE, application_name="test"), AbsentFileStore(), FilesSection()
            ),
            readiness=self.readiness,
            metrics=metrics,
            management=Management.connect(NO_STORE, b"pepper"),
            database=Database.connect(NO_STORE, application_name="nobody"),
            settings=settings,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["GatewayUnderTest"]:
        """Serves until left; afterwards nothing is unsettled."""
        async with serving(build_application(self._lifespan)) as self.url:
            await self.until_connected()
            yield self
        assert self.ledger.open == {}

    async def until_connected(self, wanted: bool = True) -> None:
        """Waits until the engine is connected, or is not."""
        async with asyncio.timeout(10):
            while bool(self.directory.serving("tiny")) is not wanted:
                self._changed.clear()
                await self._changed.wait()

    def http(self, **options: Any) -> httpx.AsyncClient:
        """A client with the good key."""
        return http_client(
            base_url=self.url, headers={"Authorization": f"Bearer {GOOD_KEY}"}, timeout=20, **options
        )

    def openai(self) -> AsyncOpenAI:
        """The official client, without retries."""
        return openai_client(self.url, GOOD_KEY, max_retries=0)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        self.readiness.note_store_answered()
        await self.directory.start()
        yield {STATE_KEY: self.services}
        await self.generation.settled()
        await self.directory.stop()

    def _make_client(self, address: EngineAddress) -> EngineClient:
        return EngineClient(
            address,
            Identity(replica="gateway-1", epoch=1, shared_secret="secret"),
            on_description=self.catalogue.learn,
            on_status=self.catalogue.follow,
            on_change=self._on_change,
        )

    def _on_change(self) -> None:
        self._changed.set()
        self.dispatcher.pump()


@asynccontextmanager
async def running_gateway(
    *, settings: GatewaySection | None = None, **description: Any
) -> AsyncIterator[GatewayUnderTest]:
    """A gateway with one scripted engine, which holds every request until it is given another script."""
    engine = WebSocketEngine(engine_description(**description), hold)
    await engine.start()
    async with GatewayUnderTest(engine, settings or GatewaySection()).running() as gateway:
        yield gateway
    await engine.stop()
