"""What this folder alone needs: unit tests start without the gateway and its client."""

from collections.abc import AsyncIterator

import pytest

from gateway.db import Database
from gateway.keys.service import KeyService
from tests.builders.gateway_under_test import GatewayUnderTest, running_gateway
from tests.builders.store import PEPPER


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
