"""A gateway that keeps files, and one of its customers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from openai import AsyncOpenAI

from gateway.db import Database
from gateway.files.incoming import PENDING_BYTES
from gateway.key_administration import issue_key
from gateway.keys.scope import Scope as KeyScope
from gateway.quotas.limits import QuotaKind
from gateway.settings import FilesSection
from tests.builders.engine_messages import engine_description
from tests.builders.http_clients import openai_client
from tests.builders.store import PEPPER, Customer, limit_tenant, make_customer
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer

LINES = b'{"custom_id": "a"}\n{"custom_id": "b"}\n'
MAX_FILE_BYTES = 4 * PENDING_BYTES
SETTINGS = {"max_file_bytes": MAX_FILE_BYTES, "max_lines": 10, "silence_seconds": 0.5, "max_uploads": 8}


@dataclass(frozen=True, kw_only=True)
class House:
    """A gateway that keeps files in `directory`, and one of its customers."""

    url: str
    directory: Path
    customer: Customer
    database: Database

    def http(self, secret: str | None = None) -> httpx.AsyncClient:
        """A client with the customer's key, or another."""
        return client_of(self.url, secret or self.customer.secret)

    def openai(self) -> AsyncOpenAI:
        """The official client, without retries."""
        return openai_client(self.url, self.customer.secret, max_retries=0)

    async def key(self, *, project: str | None = None, scopes: list[KeyScope] | None = None) -> str:
        """One more key of the customer."""
        issued = await issue_key(
            self.database,
            PEPPER,
            "test",
            self.customer.tenant.id,
            name="more",
            project=project,
            scopes=scopes or list(KeyScope),
        )
        return issued.secret

    async def limit(self, value: int, **where: str) -> None:
        """Limits what the customer may store."""
        await limit_tenant(
            self.database, self.customer.tenant.id, QuotaKind.FILE_STORAGE_BYTES, value, **where
        )


@asynccontextmanager
async def file_house(database: Database, database_url: str, directory: Path) -> AsyncIterator[House]:
    """The house, with small caps, its files in `directory`."""
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    settings = FilesSection(directory=directory, **SETTINGS)
    customer = await make_customer(database)
    async with stored_gateway(database_url, engine, files=settings) as url:
        yield House(url=url, directory=directory, customer=customer, database=database)
    await engine.stop()
