"""Whatever goes wrong gets its status, its four fields, and a hint when to try again."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from engine.protocol import (
    AdmissionReason,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    Refused,
    TokenDelta,
    Usage,
    WaitReason,
    Window,
)
from gateway.errors import LimitReached, StoreUnavailable
from gateway.logs import JsonFormatter
from gateway.settings import GatewaySection
from gateway.usage.outcome import Outcome
from tests.builders.bad_bodies import BAD_CHAT_BODIES, BAD_COMPLETION_BODIES
from tests.builders.bodies import chat_body, completion_body
from tests.builders.engine_messages import engine_limits, token_ids_of
from tests.builders.gateway_under_test import GatewayUnderTest, running_gateway
from tests.builders.http_clients import http_client
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import Script, WebSocketEngine, answer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def assert_error(response: httpx.Response, status: int, **fields: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert response.status_code == status, error
    assert set(error) - {"reason", "wait_reason"} == {"message", "type", "param", "code"}
    assert {name: error[name] for name in fields} == fields
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return error


# --- the body ----------------------------------------------------------------------------------------------


async def test_every_bad_body_is_a_400_naming_the_parameter(gateway: GatewayUnderTest) -> None:
    async with gateway.http() as client:
        for path, bodies in ((CHAT, BAD_CHAT_BODIES), (COMPLETIONS, BAD_COMPLETION_BODIES)):
            for _, body, param in bodies:
                assert_error(
                    await client.post(path, content=body), 400, type="invalid_request_error", param=param
                )
    assert gateway.engine.received == []


async def test_more_than_the_context_is_a_400_with_both_numbers(gateway: GatewayUnderTest) -> None:
    async with gateway.http() as client:
        response = await client.post(COMPLETIONS, json=completion_body(prompt="a" * 500, max_tokens=100))
    error = assert_error(response, 400, code="context_length_exceeded", param="prompt")
    assert "512" in error["message"]
    assert "600" in error["message"]


async def test_an_unknown_model_is_a_404(gateway: GatewayUnderTest) -> None:
    async with gateway.http() as client:
        assert_error(
            await client.post(CHAT, json=chat_body(model="x")), 404, code="model_not_found", param="model"
        )
        assert_error(await client.get("/v1/models/x"), 404, code="model_not_found")


async def test_a_body_over_the_cap_is_a_413_announced_or_not(gateway: GatewayUnderTest) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(16):
            yield b" " * 1024 * 1024

    async with gateway.http() as client:
        announced = await client.post(CHAT, content=b" " * (4 * 1024 * 1024 + 1))
        assert_error(announced, 413, code="request_too_large")
        assert_error(await client.post(CHAT, content=chunks()), 413, code="request_too_large")


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with running_gateway(settings=GatewaySection(read_timeout_seconds=0.05)) as gateway:
        address = urlsplit(gateway.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {GOOD_KEY}\r\nContent-Length: 9"
        writer.write(head.encode() + b"\r\n\r\n{")
        response = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert response.startswith(b"HTTP/1.1 504 ")
    assert b'"request_timeout"' in response


async def test_an_error_quotes_little_of_a_long_body(gateway: GatewayUnderTest) -> None:
    async with gateway.http() as client:
        for body in (chat_body(model="x" * 1_000_000), chat_body(service_tier="x" * 1_000_000)):
            assert len((await client.post(CHAT, json=body)).content) < 1_000


# --- the key -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer sk-wrong", "Basic eDp5", "Bearer \xe9"]
)
async def test_a_bad_key_is_a_401(gateway: GatewayUnderTest, authorization: str | None) -> None:
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
    async with http_client(base_url=gateway.url, headers=headers) as client:
        for response in (await client.post(CHAT, json=chat_body()), await client.get("/v1/models")):
            assert_error(response, 401, code="invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"


async def test_a_store_that_is_away_is_a_503_and_never_a_401(gateway: GatewayUnderTest) -> None:
    gateway.keys.failure = StoreUnavailable("The database does not answer.")
    async with gateway.http() as client:
        response = await client.post(CHAT, json=chat_body())
    assert_error(response, 503, code="store_unavailable", type="service_unavailable_error")
    assert response.headers["retry-after"] == "2"


# --- the limits --------------------------------------------------------------------------------------------


async def test_a_tenant_over_its_limit_is_a_429_with_a_time_to_try_again(gateway: GatewayUnderTest) -> None:
    gateway.ledger.failure = LimitReached(
        "Rate limit reached.", limit_type="tokens", code="rate_limit_exceeded", retry_after_seconds=1.2
    )
    async with gateway.http() as client:
        response = await client.post(CHAT, json=chat_body())
    assert_error(response, 429, code="rate_limit_exceeded", type="tokens")
    assert response.headers["retry-after"] == "2"
    assert response.headers["retry-after-ms"] == "1200"
    assert "x-should-retry" not in response.headers
    assert gateway.engine.received == []


async def test_a_request_over_the_whole_limit_is_not_to_be_tried_again(gateway: GatewayUnderTest) -> None:
    gateway.ledger.failure = LimitReached(
        "Too large.",
        limit_type="tokens",
        code="rate_limit_exceeded",
        retry_after_seconds=None,
        should_retry=False,
    )
    async with gateway.http() as client:
        response = await client.post(CHAT, json=chat_body())
    assert response.headers["x-should-retry"] == "false"
    assert "retry-after" not in response.headers


# --- the engine --------------------------------------------------------------------------------------------


OVERLOADED = (503, "server_is_overloaded")
REFUSALS = {
    AdmissionReason.QUEUE_FULL: OVERLOADED,
    AdmissionReason.TENANT_QUEUE_FULL: (429, "tenant_queue_full"),
    AdmissionReason.KV_NEVER_FITS: (400, "kv_never_fits"),
    AdmissionReason.CONTEXT_TOO_LONG: (400, "context_length_exceeded"),
    AdmissionReason.OUTPUT_TOO_LONG: (400, "output_too_long"),
    AdmissionReason.LONG_CONTEXT_DEGRADED: OVERLOADED,
    AdmissionReason.RATE_SHARE: (429, "rate_share"),
    AdmissionReason.DEADLINE_INFEASIBLE: OVERLOADED,
    AdmissionReason.WAITING_TIMEOUT: OVERLOADED,
    AdmissionReason.DRAINING: OVERLOADED,
    AdmissionReason.INVALID_REQUEST: (400, "invalid_request"),
    AdmissionReason.ENGINE_UNHEALTHY: OVERLOADED,
}


def refuse(reason: AdmissionReason, wait_reason: WaitReason | None = None) -> Script:
    def script(engine: WebSocketEngine, request: GenerateRequest) -> None:
        engine.send(Refused(request.id, reason, "No.", 3000, wait_reason))

    return script


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engines_refusal_has_its_own_status_streaming_or_not(
    gateway: GatewayUnderTest, stream: bool
) -> None:
    async with gateway.http() as client:
        for reason, (status, code) in REFUSALS.items():
            gateway.engine.script = refuse(reason)
            response = await client.post(CHAT, json=chat_body(stream=stream))
            assert_error(response, status, code=code, message="No.", reason=reason)
            assert response.headers.get("retry-after") == (None if status == 400 else "3")
    assert set(REFUSALS) == set(AdmissionReason)
    await gateway.ledger.until_settled(*[Outcome.REFUSED] * len(REFUSALS))


async def test_what_a_request_waited_for_is_in_its_error_and_its_log_line(
    gateway: GatewayUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway")
    gateway.engine.script = refuse(AdmissionReason.WAITING_TIMEOUT, WaitReason.TENANT_SHARE)
    async with gateway.http() as client:
        response = await client.post(CHAT, json=chat_body())
    error = assert_error(response, 503, reason="waiting_timeout", wait_reason="tenant_share")
    assert error["message"] == "No. (It last waited for tenant_share.)"
    (line,) = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert (line["reason"], line["wait_reason"]) == ("waiting_timeout", "tenant_share")


async def test_refusals_are_counted_by_reason_and_tenant(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = refuse(AdmissionReason.RATE_SHARE)
    async with gateway.http() as client:
        await client.post(CHAT, json=chat_body())
        await client.post(COMPLETIONS, json=completion_body(prompt="a" * 500, max_tokens=100))
    refused = gateway.services.metrics.refused.metric
    samples = {
        tuple(sample.labels.values()): sample.value
        for metric in refused.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    assert samples == {("rate_share", "acme"): 1.0, ("context_too_long", "acme"): 1.0}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (COMPLETIONS, completion_body(prompt="a" * 500, max_tokens=100), "context_too_long"),
        (COMPLETIONS, completion_body(max_tokens=300), "output_too_long"),
    ],
)
async def test_what_the_gateway_refuses_by_itself_has_a_reason_of_the_same_set(
    gateway: GatewayUnderTest, path: str, body: dict[str, Any], reason: str
) -> None:
    async with gateway.http() as client:
        assert_error(await client.post(path, json=body), 400, reason=reason)


async def test_without_an_engine_the_answer_is_a_503_at_once(gateway: GatewayUnderTest) -> None:
    await gateway.engine.stop()
    await gateway.until_connected(False)
    async with gateway.http() as client:
        response = await client.post(CHAT, json=chat_body())
        assert_error(response, 503, code="server_is_overloaded", reason="engine_unhealthy")
        assert int(response.headers["retry-after"]) >= 1
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/models/tiny")).status_code == 200, "the last description is kept"
    await gateway.engine.start()


async def test_an_engine_that_is_back_serves_again(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(5)
    await gateway.engine.stop()
    await gateway.until_connected(False)
    await gateway.engine.start()
    await gateway.until_connected()
    async with gateway.http() as client:
        assert (await client.post(CHAT, json=chat_body())).status_code == 200


async def test_a_lost_engine_is_a_503_for_those_who_wait(gateway: GatewayUnderTest) -> None:
    async with gateway.http() as client:
        waiting = [
            asyncio.create_task(client.post(CHAT, json=chat_body(stream=stream)))
            for stream in (True, False) * 6
        ]
        await gateway.engine.until(lambda: len(gateway.engine.received) == 8)  # the window; four are queued
        await gateway.engine.stop()
        for response in await asyncio.gather(*waiting):
            assert_error(response, 503, code="server_is_overloaded")
    await gateway.engine.start()


async def test_a_lost_engine_ends_a_stream_with_an_error_event(gateway: GatewayUnderTest) -> None:
    def begin(engine: WebSocketEngine, request: GenerateRequest) -> None:
        engine.send(TokenDelta(request.id, token_ids_of("ab")))

    gateway.engine.script = begin
    async with gateway.openai() as client:
        stream = await client.completions.create(model="tiny", prompt="x", stream=True)
        assert (await anext(stream)).choices[0].text == "ab"
        await gateway.engine.stop()
        with pytest.raises(openai.APIError) as failure:
            await anext(stream)
    assert failure.value.code == "server_is_overloaded"
    assert await gateway.ledger.until_settled(Outcome.FAILED) == [Usage(1, 0, 2)]
    await gateway.engine.start()


async def test_an_error_inside_a_stream_is_its_last_event(gateway: GatewayUnderTest) -> None:
    def begin_and_fail(engine: WebSocketEngine, request: GenerateRequest) -> None:
        engine.send(TokenDelta(request.id, token_ids_of("ab")))
        engine.send(Failed(request.id, "secret detail", Usage(1, 0, 2)))

    gateway.engine.script = begin_and_fail
    async with gateway.http() as client:
        response = await client.post(COMPLETIONS, json=completion_body(stream=True))
    last = [line for line in response.text.splitlines() if line][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", None)
    assert "secret" not in response.text
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_reports_the_deadline_is_a_504(gateway: GatewayUnderTest, stream: bool) -> None:
    def run_out(engine: WebSocketEngine, request: GenerateRequest) -> None:
        engine.send(Finished(request.id, FinishReason.DEADLINE, Usage(2, 0, 3)))

    gateway.engine.script = run_out
    async with gateway.http() as client:
        response = await client.post(CHAT, json=chat_body(stream=stream))
    assert_error(response, 504, type="timeout_error")
    assert await gateway.ledger.until_settled(Outcome.DEADLINE) == [Usage(2, 0, 3)]


# --- time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_our_own_deadline_is_a_504_and_cancels(stream: bool) -> None:
    async with running_gateway(settings=GatewaySection(request_timeout_seconds=0.2)) as gateway:
        async with gateway.http() as client:
            response = await client.post(CHAT, json=chat_body(stream=stream))
            assert_error(response, 504, type="timeout_error")
        await gateway.engine.until(lambda: len(gateway.engine.cancelled) == 1)
        gateway.engine.send(Finished(gateway.engine.cancelled[0], FinishReason.CANCELLED, Usage(2, 0, 0)))
        assert await gateway.ledger.until_settled(Outcome.DEADLINE) == [Usage(2, 0, 0)]


async def test_the_clients_own_patience_is_a_deadline(gateway: GatewayUnderTest) -> None:
    async with gateway.http() as client:
        response = await client.post(CHAT, json=chat_body(), headers={"x-stainless-read-timeout": "0.2"})
    assert_error(response, 504)
    gateway.engine.send(Finished(gateway.engine.received[0].id, FinishReason.CANCELLED, Usage(0, 0, 0)))


async def test_waiting_too_long_in_the_queue_is_a_503() -> None:
    async with running_gateway(
        window=Window(interactive=0, offline=0), limits=engine_limits(waiting_timeout_ms=100)
    ) as gateway:
        async with gateway.http() as client:
            assert_error(
                await client.post(CHAT, json=chat_body()),
                503,
                code="server_is_overloaded",
                reason="waiting_timeout",
                wait_reason="max_num_seqs",
            )
        assert gateway.dispatcher.num_waiting == 0


async def test_a_full_queue_is_a_503_at_once() -> None:
    settings = GatewaySection(max_queued_requests=1)
    async with running_gateway(settings=settings, window=Window(interactive=0, offline=0)) as gateway:
        async with gateway.http() as client:
            first = asyncio.create_task(client.post(CHAT, json=chat_body()))
            await gateway.ledger.until_reserved()
            assert_error(await client.post(CHAT, json=chat_body()), 503, reason="queue_full")
            await gateway.engine.stop()
            assert_error(await first, 503)
        await gateway.engine.start()


# --- bugs and routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_an_unexpected_error_tells_nothing_but_the_request_id(
    gateway: GatewayUnderTest, path: str
) -> None:
    gateway.keys.failure = RuntimeError("secret detail")
    async with gateway.http() as client:
        response = await client.request(
            "POST" if path == CHAT else "GET", path, headers={"x-request-id": "my-id"}
        )
    error = assert_error(response, 500, type="server_error")
    assert "my-id" in error["message"]
    assert "secret" not in response.text


async def test_a_bug_after_the_reservation_settles_it(
    gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("gateway.text.transcript.Transcript.add", broken)
    gateway.engine.script = answer(5)
    async with gateway.http() as client:
        assert_error(await client.post(CHAT, json=chat_body()), 500)
    await gateway.ledger.until_settled(Outcome.FAILED)


async def test_unknown_routes_and_methods_have_errors_of_the_same_shape(gateway: GatewayUnderTest) -> None:
    async with gateway.http() as client:
        assert_error(await client.get("/v1/nothing"), 404, code="unknown_url")
        assert_error(await client.get(CHAT), 405)
        assert_error(await client.delete("/v1/models"), 405)
        assert_error(await client.post(CHAT + "/", json=chat_body()), 404, code="unknown_url")
