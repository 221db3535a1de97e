"""Answers over real HTTP: the official client and the raw bytes."""

import json
from typing import Any

import httpx
import pytest

from engine.protocol import Finished, FinishReason, GenerateRequest, TokenDelta, Usage
from gateway.usage.outcome import Outcome
from tests.builders.bodies import chat_body, completion_body
from tests.builders.engine_messages import token_ids_of
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.fakes.ledger import Settled
from tests.fakes.websocket_engine import WebSocketEngine, answer

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
NUM_PROMPT_TOKENS = len("user\nHi") + 1 + 1 + len("\n") + 1 + len("assistant\n")


async def test_a_chat_completion_for_the_official_client(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(*token_ids_of("Olá 👋"), 2)
    async with gateway.openai() as client:
        completion = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert completion.choices[0].message.content == "Olá 👋"
    assert completion.choices[0].message.role == "assistant"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == NUM_PROMPT_TOKENS
    assert completion.usage.completion_tokens == len("Olá 👋".encode()) + 1
    assert completion.service_tier == "default"
    assert completion.id.startswith("chatcmpl-")


async def test_a_streamed_chat_completion_for_the_official_client(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(*token_ids_of("Olá 👋"), reason=FinishReason.LENGTH)
    async with gateway.openai() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Olá 👋"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("Olá 👋".encode())
    assert len({chunk.id for chunk in chunks}) == 1


async def test_cached_tokens_are_the_engines_number_streamed_or_whole(gateway: GatewayUnderTest) -> None:
    def from_cache(engine: WebSocketEngine, request: GenerateRequest) -> None:
        engine.send(TokenDelta(request.id, (5,)), Finished(request.id, FinishReason.STOP, Usage(9, 8, 1)))

    gateway.engine.script = from_cache
    async with gateway.openai() as client:
        whole = await client.chat.completions.create(model="tiny", messages=MESSAGES)
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        last = [chunk async for chunk in stream][-1]
    for usage in (whole.usage, last.usage):
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 8


async def test_completions_for_the_official_client(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(*token_ids_of("abc"))
    async with gateway.openai() as client:
        whole = await client.completions.create(model="tiny", prompt="x")
        stream = await client.completions.create(model="tiny", prompt="x", stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert whole.choices[0].text == streamed == "abc"
    assert whole.object == "text_completion"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 1


async def test_models_for_the_official_client(gateway: GatewayUnderTest) -> None:
    async with gateway.openai() as client:
        assert [model.id async for model in await client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).created == 1_700_000_000


async def sse_lines(gateway: GatewayUnderTest, path: str, body: dict[str, Any]) -> list[str]:
    async with gateway.http() as client:
        response = await client.post(path, json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return response.text.splitlines()


async def test_the_bytes_of_a_chat_stream(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(*token_ids_of("ab"))
    lines = await sse_lines(gateway, "/v1/chat/completions", chat_body(stream=True))
    assert lines[1::2] == [""] * (len(lines) // 2)
    data = [line.removeprefix("data: ") for line in lines[::2]]
    assert data[-1] == "[DONE]"
    chunks = [json.loads(item) for item in data[:-1]]
    assert all(chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all("role" not in delta for delta in deltas[1:])


async def test_usage_is_null_until_its_own_chunk_without_choices(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(*token_ids_of("ab"))
    body = completion_body(stream=True, stream_options={"include_usage": True})
    lines = await sse_lines(gateway, "/v1/completions", body)
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[::2] if "[DONE]" not in line]
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 2 + 2


async def test_an_answer_without_text_is_whole_all_the_same(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(2)
    lines = await sse_lines(gateway, "/v1/chat/completions", chat_body(stream=True))
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[::2] if "[DONE]" not in line]
    assert deltas == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_never_shows_and_what_ran_past_it_is_not_charged(
    gateway: GatewayUnderTest, stream: bool
) -> None:
    def runs_on(engine: WebSocketEngine, request: GenerateRequest) -> None:
        for token_id in token_ids_of("one END two"):
            engine.send(TokenDelta(request.id, (token_id,)))
        engine.send(Finished(request.id, FinishReason.CANCELLED, Usage(len(request.prompt_ids), 0, 11)))

    gateway.engine.script = runs_on
    async with gateway.http() as client:
        response = await client.post("/v1/completions", json=completion_body(stop="END", stream=stream))
    assert "one " in text_of(response)
    assert "E" not in text_of(response)
    assert gateway.ledger.settled == [Settled(Usage(2, 0, len("one END")), Outcome.FINISHED)]


async def test_a_stop_string_ends_the_request_at_the_engine(gateway: GatewayUnderTest) -> None:
    def never_ends(engine: WebSocketEngine, request: GenerateRequest) -> None:
        engine.send(TokenDelta(request.id, token_ids_of("ab")))

    gateway.engine.script = never_ends
    async with (
        gateway.http() as client,
        client.stream("POST", "/v1/completions", json=completion_body(stop="b", stream=True)) as response,
    ):
        await gateway.engine.until(lambda: len(gateway.engine.cancelled) == 1)
        request = gateway.engine.received[0]
        gateway.engine.send(Finished(request.id, FinishReason.CANCELLED, Usage(2, 0, 9)))
        await response.aread()
    assert '"completion_tokens"' not in response.text
    assert gateway.ledger.settled == [Settled(Usage(2, 0, 2), Outcome.FINISHED)]


async def test_an_answer_is_settled_before_done(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(*token_ids_of("ab"))
    async with (
        gateway.http() as client,
        client.stream("POST", "/v1/completions", json=completion_body(stream=True)) as response,
    ):
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                assert gateway.ledger.open == {}
    assert gateway.ledger.settled == [Settled(Usage(2, 0, 2), Outcome.FINISHED)]


async def test_the_engine_gets_the_whole_request(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(5)
    gateway.ledger.most_output = 7
    body = completion_body(
        prompt=[4, 5, 6],
        max_tokens=9,
        min_tokens=1,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        seed=11,
        ignore_eos=True,
        service_tier="flex",
    )
    async with gateway.http() as client:
        response = await client.post("/v1/completions", json=body)
    request = gateway.engine.received[0]
    assert response.json()["service_tier"] == "flex"
    assert request.request_class == "offline"
    assert request.prompt_ids == (4, 5, 6)
    assert (request.tenant, request.model, request.epoch) == ("ten_acme", "tiny", 1)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 3, 11)
    assert (sampling.min_tokens, sampling.ignore_eos) == (1, True)
    assert sampling.max_tokens == 7, "no more than the reservation pays for"
    assert 590_000 < request.timeout_ms <= 600_000
    assert len(request.cache_namespace) == 32


def text_of(response: httpx.Response) -> str:
    if response.headers["content-type"] == "application/json":
        return str(response.json()["choices"][0]["text"])
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for item in data for choice in json.loads(item)["choices"])
