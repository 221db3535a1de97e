"""What this folder alone needs: unit tests start without the gateway and its client."""

from collections.abc import AsyncIterator

import pytest

from gateway.db import Database
from gateway.keys.service import KeyService
from gateway.metering import Metering
from tests.builders.gateway_under_test import GatewayUnderTest, running_gateway
from tests.builders.store import PEPPER
from tests.fakes.slow_database import SlowDatabase


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayUnderTest]:
    """A running gateway with default settings."""
    async with running_gateway() as gateway:
        yield gateway


@pytest.fixture
async def keys(database: Database) -> AsyncIterator[KeyService]:
    """Checks keys, and follows their changes."""
    keys = KeyService(database, PEPPER)
    await keys.start()
    yield keys
    await keys.stop()


@pytest.fixture
async def metering(database: Database) -> AsyncIterator[Metering]:
    """One process's promises, begun."""
    metering = Metering(database, "replica-1")
    await metering.start()
    yield metering
    await metering.stop()


@pytest.fixture
async def slow_database(database_url: str) -> AsyncIterator[SlowDatabase]:
    """The same store, slow when it is told to be."""
    database = SlowDatabase.connect(database_url, application_name="slow")
    yield database
    await database.close()
