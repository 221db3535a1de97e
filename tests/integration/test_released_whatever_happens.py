"""However a request ends, what it held is free again: slots and tokens are what live requests hold."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from engine.protocol import Finished, FinishReason, GenerateRequest, TokenDelta, Usage, Window
from gateway.db import Database
from gateway.quotas.limits import QuotaKind
from gateway.usage.outcome import Outcome
from tests.builders.bodies import chat_body
from tests.builders.engine_messages import engine_description, token_ids_of
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.builders.store import Customer, make_customer
from tests.builders.store_rows import until_rows, until_value, value
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer, hold

CHAT = "/v1/chat/completions"
NUM_CLIENTS = 200
NUM_LIVE = "SELECT coalesce(sum(num_live), 0)::int FROM replica_load"


@pytest.fixture
async def engine() -> AsyncIterator[WebSocketEngine]:
    window = Window(interactive=2 * NUM_CLIENTS, offline=1)
    engine = WebSocketEngine(engine_description(window=window), hold, secret=SHARED)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def url(database_url: str, engine: WebSocketEngine) -> AsyncIterator[str]:
    async with stored_gateway(database_url, engine) as url:
        yield url


async def drop_a_stream(url: str, customer: Customer) -> None:
    """Reads the first text of an answer, then is gone without a word."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps(chat_body(stream=True, max_tokens=8)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {customer.secret}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await reader.readuntil(b'"a"')
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


@pytest.mark.postgres
async def test_clients_that_drop_their_streams_leave_no_slot_in_use(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    """A1. The engine counts until it is told; then everybody is let in again."""

    def begin(engine: WebSocketEngine, request: GenerateRequest) -> None:
        engine.send(TokenDelta(request.id, token_ids_of("a")))

    engine.script = begin
    customer = await make_customer(
        database, concurrent_requests=NUM_CLIENTS, limits={QuotaKind.TOKENS_PER_DAY: 100_000}
    )
    await asyncio.gather(*(drop_a_stream(url, customer) for _ in range(NUM_CLIENTS)))
    await engine.until(lambda: len(engine.cancelled) == NUM_CLIENTS)
    for request_id in engine.cancelled:
        engine.send(Finished(request_id, FinishReason.CANCELLED, Usage(7, 0, 2)))
    await until_value(database_url, NUM_LIVE, 0)
    await until_rows(
        database_url,
        "SELECT outcome, count(*), sum(prompt_tokens + completion_tokens)::int FROM usage_event GROUP BY 1",
        [("cancelled", NUM_CLIENTS, NUM_CLIENTS * 9)],
    )
    engine.script = answer(5)
    async with client_of(url, customer.secret) as client:
        again = await asyncio.gather(*(client.post(CHAT, json=chat_body()) for _ in range(NUM_CLIENTS)))
    assert {response.status_code for response in again} == {200}


@pytest.mark.postgres
@pytest.mark.parametrize("stream", [True, False])
async def test_a_slot_is_free_when_the_answer_ends_and_not_when_it_has_been_logged(
    database: Database, engine: WebSocketEngine, url: str, stream: bool
) -> None:
    """A4: whoever has read the last byte may ask again at once."""
    engine.script = answer(5)
    customer = await make_customer(database, concurrent_requests=1)
    async with client_of(url, customer.secret) as client:
        for _ in range(30):
            response = await client.post(CHAT, json=chat_body(stream=stream))
            assert response.status_code == 200, response.text


RESERVED = """
    SELECT coalesce(sum(granted - idle), 0)::int FROM quota_lease
    JOIN quota_bucket ON quota_bucket.id = bucket_id JOIN quota_limit ON quota_limit.id = limit_id
    WHERE kind = 'tokens_per_day'
"""


def held_by(*requests: GenerateRequest) -> int:
    return sum(len(request.prompt_ids) + request.sampling.max_tokens for request in requests)


@pytest.mark.postgres
async def test_what_is_reserved_is_what_live_requests_hold_and_nothing_after_a_restart(
    database: Database, database_url: str, engine: WebSocketEngine
) -> None:
    """B7: reservations that never came back, and budgets that were exceeded by nobody."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    async with stored_gateway(database_url, engine) as url, client_of(url, customer.secret) as client:
        asking = {
            length: asyncio.create_task(client.post(CHAT, json=chat_body(max_tokens=length)))
            for length in (10, 20, 30)
        }
        await engine.until(lambda: len(engine.received) == 3)
        await until_value(database_url, RESERVED, held_by(*engine.received))
        by_length = {request.sampling.max_tokens: request for request in engine.received}
        ending = by_length.pop(10)
        engine.send(Finished(ending.id, FinishReason.STOP, Usage(len(ending.prompt_ids), 0, 1)))
        assert (await asking.pop(10)).status_code == 200
        await until_value(database_url, RESERVED, held_by(*by_length.values()))
        for leaving in asking.values():
            leaving.cancel()
        await engine.until(lambda: len(engine.cancelled) == 2)
        for request in by_length.values():
            engine.send(Finished(request.id, FinishReason.CANCELLED, Usage(0, 0, 0)))
        await until_value(database_url, RESERVED, 0)
        await asyncio.gather(*asking.values(), return_exceptions=True)
    assert value(database_url, "SELECT outstanding::int FROM quota_bucket") == 0


# --- every way out -----------------------------------------------------------------------------------------


async def test_a_request_cancelled_at_any_await_is_settled_once(gateway: GatewayUnderTest) -> None:
    """A2: counters that stayed up. The books raise when somebody settles twice, and are empty at the end."""
    gateway.engine.script = answer(*token_ids_of("abcdef"))
    num_answered = 0
    async with gateway.http() as client:
        for num_turns in range(150):
            asking = asyncio.create_task(client.post(CHAT, json=chat_body(stream=num_turns % 2 == 0)))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            asking.cancel()
            (ended,) = await asyncio.gather(asking, return_exceptions=True)
            num_answered += not isinstance(ended, BaseException)
        for request in gateway.engine.received:
            if request.id in gateway.ledger.open:
                gateway.engine.send(Finished(request.id, FinishReason.CANCELLED, Usage(1, 0, 1)))
        await gateway.generation.settled()
    assert gateway.ledger.open == {}


ON_THE_WAY = [
    "gateway.dispatch.Dispatcher.open",
    "gateway.generation.Answer",
    "gateway.generation.Generation._wire_request",
    "gateway.generation.Generation._count",
    "gateway.engines.stream.EngineStream.take",
    "gateway.answer.Answer.absorb",
    "gateway.answer.Answer.note_usage",
    "gateway.text.transcript.Transcript.add",
    "gateway.text.transcript.Transcript.finish",
    "gateway.api.inference._rate_limits",
    "gateway.api.sse.ChatFrames.text",
    "gateway.api.sse.ChatFrames.last",
    "gateway.api.exchange.Exchange.stream",
    "gateway.api.exchange.Exchange.send_json",
    "gateway.api.inference.InferenceEndpoint._log",
]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_anywhere_on_the_way_releases_what_was_reserved(
    gateway: GatewayUnderTest, stream: bool
) -> None:
    """A2 again: an exception at each step."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    gateway.engine.script = answer(*token_ids_of("abc"))
    for num_before, place in enumerate(ON_THE_WAY):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, broken)
            async with gateway.http() as client:
                with suppress(httpx.HTTPError):
                    await client.post(CHAT, json=chat_body(stream=stream))
            await gateway.generation.settled()
        assert gateway.ledger.open == {}, place
        assert len(gateway.ledger.settled) == num_before + 1, place


async def test_the_gauge_of_requests_in_flight_does_not_drift(gateway: GatewayUnderTest) -> None:
    """A8: it is the number of live answers, not a counter that goes up and down."""
    gateway.engine.script = answer(5)
    async with gateway.http() as client:
        for number in range(30):
            asking = asyncio.create_task(client.post(CHAT, json=chat_body()))
            if number % 3 == 0:
                await asyncio.sleep(0.002)
                asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        gateway.engine.script = hold
        held = asyncio.create_task(client.post(CHAT, json=chat_body()))
        await gateway.ledger.until_reserved()
        (sample,) = gateway.services.metrics.in_flight.collect()[0].samples
        assert sample.value == 1
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
    await gateway.engine.until(lambda: len(gateway.engine.cancelled) > 0)
    gateway.engine.send(Finished(gateway.engine.received[-1].id, FinishReason.CANCELLED, Usage(1, 0, 1)))
    await gateway.generation.settled()
    (sample,) = gateway.services.metrics.in_flight.collect()[0].samples
    assert sample.value == 0
    assert Outcome.FAILED not in {row.outcome for row in gateway.ledger.settled}
