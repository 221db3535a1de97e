"""Who finds whose prompts in the engines' cache: what a composed gateway writes into each request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.protocol import GenerateRequest
from gateway.administration import set_cache_group
from gateway.db import Database
from gateway.engine_administration import set_weight
from tests.builders.bodies import chat_body, completion_body
from tests.builders.engine_messages import engine_description
from tests.builders.store import Customer, make_customer
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer

pytestmark = pytest.mark.postgres

MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Site:
    """A gateway, its engine, and requests as the engine gets them."""

    def __init__(self, url: str, engine: WebSocketEngine) -> None:
        self._url = url
        self._engine = engine

    async def sent(self, customer: Customer, *, path: str = CHAT, **body: Any) -> GenerateRequest:
        whole = chat_body(messages=MESSAGES) if path == CHAT else completion_body()
        async with client_of(self._url, customer.secret) as client:
            response = await client.post(path, json=whole | body)
        assert response.status_code == 200, response.text
        return self._engine.received[-1]


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    async with stored_gateway(database_url, engine) as url:
        yield Site(url, engine)
    await engine.stop()


async def test_each_tenant_has_a_namespace_of_its_own(database: Database, site: Site) -> None:
    acme, bolt = await make_customer(database, "acme"), await make_customer(database, "bolt")
    first, again, other = await site.sent(acme), await site.sent(acme), await site.sent(bolt)
    assert first.cache_namespace == again.cache_namespace
    assert first.cache_namespace != other.cache_namespace
    assert (first.shared_namespace, first.num_shared_tokens) == (b"", 0)
    assert first.tenant_name == "acme"


async def test_a_client_cannot_choose_its_namespace(database: Database, site: Site) -> None:
    acme = await make_customer(database, "acme")
    own = await site.sent(acme)
    for field in ("cache_salt", "prompt_cache_key", "cache_namespace", "shared_namespace", "user"):
        salted = await site.sent(acme, **{field: "somebody else's"})
        assert salted.cache_namespace == own.cache_namespace
        assert salted.shared_namespace == b""


async def test_tenants_of_a_group_share_the_system_prompt_and_nothing_else(
    database: Database, site: Site
) -> None:
    acme, bolt, cord, solo = [
        await make_customer(database, name) for name in ("acme", "bolt", "cord", "solo")
    ]
    for customer, group in ((acme, "public"), (bolt, "public"), (cord, "private")):
        await set_cache_group(database, "ana", customer.tenant.id, group)
    of_acme, of_bolt, of_cord, of_solo = [await site.sent(each) for each in (acme, bolt, cord, solo)]
    assert of_acme.shared_namespace == of_bolt.shared_namespace != b""
    assert of_cord.shared_namespace not in (of_acme.shared_namespace, b"")
    assert of_solo.shared_namespace == b""
    assert len({each.cache_namespace for each in (of_acme, of_bolt, of_cord, of_solo)}) == 4
    assert 0 < of_acme.num_shared_tokens == of_bolt.num_shared_tokens < len(of_acme.prompt_ids)
    assert (await site.sent(acme, path=COMPLETIONS)).shared_namespace == b""


async def test_a_change_of_group_and_weight_binds_at_the_next_poll(database: Database, site: Site) -> None:
    acme = await make_customer(database, "acme")
    assert (await site.sent(acme)).shared_namespace == b""
    await set_cache_group(database, "ana", "acme", "public")
    await set_weight(database, "ana", "acme", 4.0)
    async with asyncio.timeout(5):  # 2 seconds on a machine that does nothing else
        while not (sent := await site.sent(acme)).shared_namespace or sent.weight != 4.0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await set_cache_group(database, "ana", "acme", None)
    async with asyncio.timeout(5):
        while (await site.sent(acme)).shared_namespace:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
