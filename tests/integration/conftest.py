"""What this folder alone needs: unit tests start without the gateway and its client."""

from collections.abc import AsyncIterator

import pytest

from tests.builders.gateway_under_test import GatewayUnderTest, running_gateway


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayUnderTest]:
    """A running gateway with default settings."""
    async with running_gateway() as gateway:
        yield gateway
