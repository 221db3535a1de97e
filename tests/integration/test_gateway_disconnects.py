"""A client that leaves, or does not read, ends its request: at the engine, in the queue and in the books."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine.protocol import Finished, FinishReason, GenerateRequest, TokenDelta, Usage, Window
from gateway.settings import GatewaySection
from gateway.usage.outcome import Outcome
from tests.builders.bodies import chat_body
from tests.builders.engine_messages import token_ids_of
from tests.builders.gateway_under_test import GatewayUnderTest, running_gateway
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import WebSocketEngine

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def posted(gateway: GatewayUnderTest, body: dict[str, Any]) -> AsyncIterator[Connection]:
    """A connection of its own on which a request has been sent."""
    parts = urlsplit(gateway.url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the system buffers little for it
    reader, writer = await asyncio.open_connection(sock=connection)
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {GOOD_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def begin(engine: WebSocketEngine, request: GenerateRequest) -> None:
    engine.send(TokenDelta(request.id, token_ids_of("ab")))


@pytest.mark.parametrize("abrupt", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("begun", [True, False])
async def test_leaving_cancels_at_the_engine_and_charges_what_was_generated(
    gateway: GatewayUnderTest, stream: bool, abrupt: bool, begun: bool
) -> None:
    if begun:
        gateway.engine.script = begin
    async with posted(gateway, chat_body(stream=stream)) as (reader, writer):
        await gateway.engine.until(lambda: len(gateway.engine.received) == 1)
        if begun and stream:
            await reader.readuntil(b'"ab"')
        if abrupt:
            writer.transport.abort()
    request = gateway.engine.received[0]
    await gateway.engine.until(lambda: gateway.engine.cancelled == [request.id])
    gateway.engine.send(Finished(request.id, FinishReason.CANCELLED, Usage(20, 0, 5)))
    assert await gateway.ledger.until_settled(Outcome.CANCELLED) == [Usage(20, 0, 5)]


async def test_without_the_engines_word_what_arrived_is_charged(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = begin
    async with posted(gateway, chat_body(stream=True)) as (reader, _):
        await reader.readuntil(b'"ab"')
    await gateway.engine.until(lambda: len(gateway.engine.cancelled) == 1)
    await gateway.engine.stop()
    num_prompt = len(gateway.engine.received[0].prompt_ids)
    assert await gateway.ledger.until_settled(Outcome.CANCELLED) == [Usage(num_prompt, 0, 2)]
    await gateway.engine.start()


async def test_the_books_hear_of_output_before_its_client_does(gateway: GatewayUnderTest) -> None:
    """Should all die now, what was delivered is known."""
    async with posted(gateway, chat_body(stream=True)) as (reader, _):
        await gateway.ledger.until_reserved()
        assert gateway.ledger.num_reached == 0
        await gateway.engine.until(lambda: len(gateway.engine.received) == 1)
        begin(gateway.engine, gateway.engine.received[0])
        await reader.readuntil(b'"ab"')
        assert gateway.ledger.num_reached == 2
        gateway.engine.send(Finished(gateway.engine.received[0].id, FinishReason.STOP, Usage(20, 0, 2)))
        await reader.readuntil(b"data: [DONE]")


async def test_leaving_the_queue_takes_effect_at_once() -> None:
    async with running_gateway(window=Window(interactive=0, offline=0)) as gateway:
        async with posted(gateway, chat_body()):
            await gateway.ledger.until_reserved()
        assert await gateway.ledger.until_settled(Outcome.CANCELLED) == [Usage(0, 0, 0)]
        assert gateway.dispatcher.num_waiting == 0
        assert gateway.engine.received == []


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    def flood(engine: WebSocketEngine, request: GenerateRequest) -> None:
        control_characters = token_ids_of("\x01" * 100_000)  # each is six bytes of JSON
        for _ in range(12):
            engine.send(TokenDelta(request.id, control_characters))

    async with running_gateway(settings=GatewaySection(write_timeout_seconds=0.2)) as gateway:
        gateway.engine.script = flood
        async with posted(gateway, chat_body(stream=True)) as (_, writer):
            await gateway.engine.until(lambda: len(gateway.engine.cancelled) == 1)
            gateway.engine.send(Finished(gateway.engine.cancelled[0], FinishReason.CANCELLED, Usage(1, 0, 1)))
            assert await gateway.ledger.until_settled(Outcome.CANCELLED) == [Usage(1, 0, 1)]
            writer.transport.abort()


async def test_a_quiet_stream_is_kept_alive_by_comments_of_one_line() -> None:
    async with (
        running_gateway(settings=GatewaySection(keepalive_seconds=0.05)) as gateway,
        posted(gateway, chat_body(stream=True)) as (reader, _),
    ):
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        first = await reader.readuntil(b"ping\n\r\n")
        second = await reader.readuntil(b"ping\n\r\n")
        assert first == second == b"7\r\n: ping\n\r\n"
        request = gateway.engine.received[0]
        gateway.engine.send(TokenDelta(request.id, token_ids_of("ab")))
        assert b'data: {"id":' in await reader.readuntil(b'"ab"')
        gateway.engine.send(Finished(request.id, FinishReason.STOP, Usage(20, 0, 2)))
        await reader.readuntil(b"data: [DONE]\n\n")


async def test_shutting_down_ends_streams_with_an_error_event(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = begin
    async with posted(gateway, chat_body(stream=True)) as (reader, _):
        await reader.readuntil(b'"ab"')
        gateway.generation.interrupt()
        rest = await reader.readuntil(b"\r\n0\r\n\r\n")
    assert b'"code":"server_is_overloaded"' in rest
    assert b"[DONE]" not in rest
    await gateway.engine.until(lambda: len(gateway.engine.cancelled) == 1)
    gateway.engine.send(Finished(gateway.engine.cancelled[0], FinishReason.CANCELLED, Usage(20, 0, 2)))
