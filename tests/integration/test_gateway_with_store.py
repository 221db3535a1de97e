"""The composed gateway with a real Postgres: keys, limits and the ledger behind real HTTP."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.protocol import Finished, FinishReason, TokenDelta, Usage
from gateway.db import Database
from gateway.key_administration import revoke_key
from gateway.quotas.limits import QuotaKind
from tests.builders.bodies import chat_body
from tests.builders.engine_messages import engine_description, token_ids_of
from tests.builders.http_clients import http_client, openai_client
from tests.builders.key_checks import age_keys
from tests.builders.store import make_customer
from tests.builders.store_rows import until_rows, until_value
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway, until_status
from tests.fakes.websocket_engine import WebSocketEngine, answer, hold
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

CHAT = "/v1/chat/completions"
NUM_LIVE = "SELECT coalesce(sum(num_live), 0)::int FROM replica_load"


@pytest.fixture
async def engine() -> AsyncIterator[WebSocketEngine]:
    engine = WebSocketEngine(engine_description(), hold, secret=SHARED)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def url(database_url: str, engine: WebSocketEngine) -> AsyncIterator[str]:
    async with stored_gateway(database_url, engine) as url:
        yield url


async def test_many_answers_are_each_in_the_ledger_once(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    engine.script = answer(*token_ids_of("abc"))
    customer = await make_customer(database, concurrent_requests=64, tokens_per_minute=100_000)
    async with openai_client(url, customer.secret) as client:
        completions = await asyncio.gather(
            *(
                client.completions.create(model="tiny", prompt="x" * number, max_tokens=9)
                for number in range(1, 33)
            )
        )
    assert all(completion.choices[0].text == "abc" for completion in completions)
    totals = "SELECT count(*), sum(prompt_tokens), sum(completion_tokens) FROM usage_event"
    await until_rows(database_url, totals, [(32, 528, 96)])
    await until_value(database_url, NUM_LIVE, 0)


async def test_a_tenant_over_its_concurrency_is_refused_and_nothing_is_counted(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=1)
    async with client_of(url, customer.secret) as client:
        first = asyncio.create_task(client.post(CHAT, json=chat_body()))
        await engine.until(lambda: len(engine.received) == 1)
        second = await client.post(CHAT, json=chat_body())
        assert second.status_code == 429
        assert second.json()["error"]["code"] == "concurrency_limit_exceeded"
        assert second.headers["x-ratelimit-remaining-requests"] == "0"
        assert int(second.headers["retry-after"]) >= 1
        request = engine.received[0]
        engine.send(TokenDelta(request.id, (5,)), Finished(request.id, FinishReason.STOP, Usage(3, 0, 1)))
        assert (await first).status_code == 200
    await until_value(database_url, "SELECT count(*) FROM usage_event", 1)


async def test_a_tenant_over_its_tokens_is_refused(
    database: Database, engine: WebSocketEngine, url: str
) -> None:
    engine.script = answer(5)
    customer = await make_customer(database, tokens_per_minute=50)
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body(max_tokens=100))
        assert response.status_code == 429
        assert response.headers["x-should-retry"] == "false"
        assert engine.received == []
        assert (await client.post(CHAT, json=chat_body())).status_code == 200, "what fits is served"
        assert engine.received[0].paid_tokens < 50


async def test_the_budget_with_least_left_is_named_in_the_headers(
    database: Database, engine: WebSocketEngine, url: str
) -> None:
    engine.script = answer(5)
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 50})
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body())
    assert response.headers["x-ratelimit-scope-tokens"] == "tenant/tokens_per_day"
    assert response.headers["x-ratelimit-limit-tokens"] == "50"
    assert response.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_a_client_that_leaves_frees_its_slot(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=1)
    async with client_of(url, customer.secret) as client:
        leaving = asyncio.create_task(client.post(CHAT, json=chat_body()))
        await engine.until(lambda: len(engine.received) == 1)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    await engine.until(lambda: engine.cancelled == [engine.received[0].id])
    engine.send(Finished(engine.received[0].id, FinishReason.CANCELLED, Usage(7, 0, 2)))
    await until_value(database_url, NUM_LIVE, 0)
    row = "SELECT prompt_tokens, completion_tokens, outcome FROM usage_event"
    await until_rows(database_url, row, [(7, 2, "cancelled")])


async def test_a_revoked_key_is_refused(database: Database, engine: WebSocketEngine, url: str) -> None:
    engine.script = answer(5)
    customer = await make_customer(database)
    async with client_of(url, customer.secret) as client:
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
        await revoke_key(database, "test", customer.caller.key)
        await until_status(client, "POST", CHAT, 401)


async def test_while_the_store_is_away_known_keys_go_on_and_strangers_are_told_503_never_401(
    database: Database, database_url: str, engine: WebSocketEngine, url: str, store_switch: StoreSwitch
) -> None:
    engine.script = answer(5)
    known, stranger = await make_customer(database), await make_customer(database, "stranger")
    age_keys(database_url)
    async with client_of(url, known.secret) as client, client_of(url, stranger.secret) as other:
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
        store_switch.off()
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
        response = await other.post(CHAT, json=chat_body())
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "store_unavailable"
        assert int(response.headers["retry-after"]) >= 1
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        store_switch.on()
        await until_status(other, "POST", CHAT, 200)
    await until_value(database_url, "SELECT count(*) FROM usage_event", 3)


async def test_while_the_store_is_away_nobody_is_served_beyond_what_was_lent(
    database: Database, engine: WebSocketEngine, url: str, store_switch: StoreSwitch
) -> None:
    engine.script = answer(5)
    customer = await make_customer(database, tokens_per_minute=200)
    async with client_of(url, customer.secret) as client:
        assert (await client.post(CHAT, json=chat_body(max_tokens=8))).status_code == 200
        store_switch.off()
        answers = [await client.post(CHAT, json=chat_body(max_tokens=8)) for _ in range(40)]
        store_switch.on()
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert answers[-1].status_code == 503
        await until_status(client, "POST", CHAT, 200)


async def test_a_store_that_is_away_is_never_a_401(
    database: Database, database_url: str, url: str, store_switch: StoreSwitch
) -> None:
    known, unknown = await make_customer(database, "known"), await make_customer(database, "unknown")
    age_keys(database_url)
    async with client_of(url, known.secret) as client, client_of(url, unknown.secret) as stranger:
        assert (await client.get("/v1/models")).status_code == 200
        store_switch.off()
        assert (await client.get("/v1/models")).status_code == 200
        response = await stranger.get("/v1/models")
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        store_switch.on()
        await until_status(stranger, "GET", "/v1/models", 200)


async def test_a_gateway_starts_without_its_store_and_waits_for_it(
    database: Database, database_url: str, engine: WebSocketEngine, store_switch: StoreSwitch
) -> None:
    await make_customer(database)
    store_switch.off()
    starting = asyncio.create_task(_first_ready(database_url, engine))
    store_switch.on()
    assert await starting == 200


async def _first_ready(database_url: str, engine: WebSocketEngine) -> int:
    async with stored_gateway(database_url, engine) as url, http_client(base_url=url) as client:
        return (await client.get("/readyz")).status_code
