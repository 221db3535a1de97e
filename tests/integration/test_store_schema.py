"""A gateway on a store with another schema than its code knows says so in a line; an old one it waits for."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
from alembic.script import ScriptDirectory

from deploy.embedded_postgres import start
from gateway.store_schema import SCHEMA_VERSION
from migrations.run import upgrade
from tests.builders.engine_messages import engine_description
from tests.builders.stored_gateway import SHARED, starting_gateway, until_status
from tests.fakes.websocket_engine import WebSocketEngine, hold


def test_the_code_names_the_newest_schema() -> None:
    assert ScriptDirectory("migrations").get_heads() == [SCHEMA_VERSION]


@asynccontextmanager
async def gateway_on(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway that has an engine and lacks nothing but its store."""
    engine = WebSocketEngine(engine_description(), hold, secret=SHARED)
    await engine.start()
    async with starting_gateway(database_url, engine) as url, httpx.AsyncClient(base_url=url) as client:
        yield client
    await engine.stop()


async def until_reason(client: httpx.AsyncClient, reason: str) -> None:
    """`/readyz` says it."""
    said = ""
    async with asyncio.timeout(10):
        while reason not in said:
            response = await client.get("/readyz")
            assert response.status_code == 503
            said = response.json()["reason"]
            await asyncio.sleep(0.05)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of a gateway that is not ready; nowhere a traceback."""
    assert not [record.getMessage() for record in caplog.records if record.exc_info]
    return [record.getMessage() for record in caplog.records if "not ready yet" in record.getMessage()]


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "The database has no schema of Sluice yet; run: sluice migrate"),
        ("20261129_first_tables", "has an older schema (20261129_first_tables) than this version needs"),
        ("20261206_operator_keys", "has an older schema (20261206_operator_keys) than this version needs"),
    ],
)
async def test_an_older_schema_is_said_in_one_line_and_waited_for(
    empty_database_url: str, caplog: pytest.LogCaptureFixture, version: str | None, reason: str
) -> None:
    if version is not None:
        upgrade(empty_database_url, version)
    async with gateway_on(empty_database_url) as client:
        await until_reason(client, reason)
        await asyncio.sleep(1.2)  # it goes on trying
        (line,) = told(caplog)
        assert reason in line
        assert line.endswith("run: sluice migrate")
        upgrade(empty_database_url)
        await until_status(client, "GET", "/readyz", 200)


@pytest.mark.postgres
async def test_a_newer_schema_is_served_while_versions_are_exchanged_and_said_in_one_line(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that restarts between the migration and its own new version comes back."""
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("UPDATE alembic_version SET version_num = '20990101_things_to_come'")
    async with gateway_on(database_url) as client:
        await until_status(client, "GET", "/readyz", 200)
    (line,) = [each.getMessage() for each in caplog.records if "newer schema" in each.getMessage()]
    assert "20990101_things_to_come" in line


async def test_a_server_that_was_never_migrated_is_not_called_out_of_reach(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is not even the role that serves."""
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as directory:
        server = start(Path(directory))
        try:
            async with gateway_on(server.url) as client:
                await until_reason(client, "no schema of Sluice yet; run: sluice migrate")
                assert len(told(caplog)) == 1
                upgrade(server.url)
                await until_status(client, "GET", "/readyz", 200)
        finally:
            server.stop()
