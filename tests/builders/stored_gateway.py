"""The composed gateway with a real store and a scripted engine, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import httpx

from gateway.app import create_app
from gateway.settings import FilesSection, GatewaySection, GatewaySettings, SecretsSection
from tests.builders.bodies import chat_body
from tests.builders.http_clients import http_client
from tests.builders.scripted_engine import SHARED_SECRET
from tests.builders.store import PEPPER
from tests.fakes.http_server import serving

SHARED = SHARED_SECRET  # between gateways and engines


class Reachable(Protocol):
    """An engine that listens somewhere."""

    @property
    def url(self) -> str:
        """Where."""


@asynccontextmanager
async def stored_gateway(
    database_url: str, *engines: Reachable, files: FilesSection | None = None
) -> AsyncIterator[str]:
    """The URL of a gateway that is ready."""
    async with (
        starting_gateway(database_url, *engines, files=files) as url,
        http_client(base_url=url) as client,
    ):
        await until_status(client, "GET", "/readyz", 200)
        yield url


@asynccontextmanager
async def starting_gateway(
    database_url: str, *engines: Reachable, files: FilesSection | None = None
) -> AsyncIterator[str]:
    """The URL of a gateway, ready or not."""
    settings = GatewaySettings(
        database_url=database_url,
        gateway=GatewaySection(engines=tuple(engine.url for engine in engines)),
        files=files or FilesSection(),
        secrets=SecretsSection(key_pepper=PEPPER.hex(), cache_namespace="ab" * 16, engine_shared=SHARED),
    )
    async with serving(create_app(settings)) as url:
        yield url


async def until_status(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    """Asks again and again, as a client would, until it gets that status."""
    body = chat_body() if method == "POST" else None
    async with asyncio.timeout(20):
        while (await client.request(method, path, json=body)).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def client_of(url: str, secret: str) -> httpx.AsyncClient:
    """A client with a key."""
    return http_client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=20)
