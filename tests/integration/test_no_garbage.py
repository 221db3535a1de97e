"""A request that is over leaves no circles of objects: collecting them would hold up all other answers."""

import gc
from collections import Counter

import httpx
import pytest

from tests.builders.bodies import chat_body
from tests.builders.engine_messages import token_ids_of
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.fakes.websocket_engine import answer

CHAT = "/v1/chat/completions"
NUM_REQUESTS = 20


def ours_among_garbage() -> Counter[str]:
    """What of the gateway's only a collection frees, by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        types = (f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
        return Counter(name for name in types if name.startswith(("gateway.", "engine.")))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def ask(client: httpx.AsyncClient, *, stream: bool) -> None:
    response = await client.post(CHAT, json=chat_body(stream=stream))
    assert response.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_served_request_leaves_nothing_to_the_garbage_collector(
    gateway: GatewayUnderTest, stream: bool
) -> None:
    gateway.engine.script = answer(*token_ids_of("abc"))
    async with gateway.http() as client:
        await ask(client, stream=stream)
        gc.collect()
        gc.disable()
        try:
            for _ in range(NUM_REQUESTS):
                await ask(client, stream=stream)
            found = ours_among_garbage()
        finally:
            gc.enable()
    assert not {name: number for name, number in found.items() if number >= NUM_REQUESTS // 2}
