"""Headers, health, documents and logs over real HTTP."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway.errors import LimitReached, LimitStanding
from gateway.logs import JsonFormatter
from tests.builders.bodies import chat_body, completion_body
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import answer

CHAT = "/v1/chat/completions"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All log lines of the process, as they would be written."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_has_the_headers_of_the_published_api(
    gateway: GatewayUnderTest, stream: bool
) -> None:
    gateway.engine.script = answer(5)
    async with gateway.http() as client:
        response = await client.post(CHAT, json=chat_body(stream=stream), headers={"x-request-id": "mine"})
    headers = response.headers
    assert headers["x-request-id"] == "mine"
    assert headers["openai-version"] == "2020-10-01"
    assert headers["openai-organization"] == "acme"
    assert int(headers["openai-processing-ms"]) < 20_000
    assert headers["x-ratelimit-limit-requests"] == "8"
    assert headers["x-ratelimit-remaining-tokens"] == "59000"
    assert headers["x-ratelimit-reset-requests"] == "250ms"
    assert headers["x-ratelimit-reset-tokens"] == "1m1s"


async def test_a_429_tells_how_the_limit_stands(gateway: GatewayUnderTest) -> None:
    gateway.ledger.failure = LimitReached(
        "No.",
        limit_type="tokens",
        code="rate_limit_exceeded",
        retry_after_seconds=1,
        standing=LimitStanding(limit=100, remaining=3, reset_seconds=90),
    )
    async with gateway.http() as client:
        headers = (await client.post(CHAT, json=chat_body())).headers
    assert headers["x-ratelimit-limit-tokens"] == "100"
    assert headers["x-ratelimit-remaining-tokens"] == "3"
    assert headers["x-ratelimit-reset-tokens"] == "1m30s"
    assert headers["openai-organization"] == "acme"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/openapi.json", "/v1/models", "/nothing"])
async def test_every_response_has_a_request_id(gateway: GatewayUnderTest, path: str) -> None:
    async with gateway.http() as client:
        response = await client.get(path)
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["openai-version"] == "2020-10-01"


async def test_the_trace_goes_through_to_the_engine_and_the_log(
    gateway: GatewayUnderTest, log: io.StringIO
) -> None:
    gateway.engine.script = answer(5)
    async with gateway.http() as client:
        await client.post(CHAT, json=chat_body(), headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    assert gateway.engine.received[0].trace_id == TRACE
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    line = next(line for line in lines if line["message"] == "request")
    assert (line["trace_id"], line["tenant"], line["status"]) == (TRACE, "acme", 200)
    assert line["generation_id"] == gateway.engine.received[0].id


async def test_a_key_is_in_no_log_line(gateway: GatewayUnderTest, log: io.StringIO) -> None:
    gateway.engine.script = answer(5)
    bad_key = GOOD_KEY.replace("test", "live")
    async with gateway.http() as client:
        await client.post(CHAT, json=chat_body())
        await client.post(CHAT, json=chat_body(), headers={"Authorization": f"Bearer {bad_key}"})
        await client.post(CHAT, content=GOOD_KEY)
        await client.post(CHAT, json=chat_body(model=GOOD_KEY))
        gateway.keys.failure = RuntimeError(f"what is {GOOD_KEY}?")
        await client.post(CHAT, json=chat_body())
    assert "what is" in log.getvalue()
    assert GOOD_KEY not in log.getvalue()
    assert bad_key not in log.getvalue()


async def test_readiness_ends_when_shutting_down_and_health_does_not(gateway: GatewayUnderTest) -> None:
    async with gateway.http() as client:
        assert (await client.get("/readyz")).status_code == 200
        gateway.readiness.close()
        assert (await client.get("/readyz")).json() == {"status": "not ready", "reason": "shutting down"}
        assert (await client.get("/healthz")).status_code == 200


async def test_the_document_holds_the_inference_routes_and_the_page_shows_them(
    gateway: GatewayUnderTest,
) -> None:
    async with gateway.http() as client:
        document = (await client.get("/openapi.json")).json()
        page = await client.get("/docs")
    assert {CHAT, "/v1/completions", "/v1/models", "/healthz"} <= document["paths"].keys()
    body = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"$ref": "#/components/schemas/ChatMessages"} in body["allOf"]
    assert set(document["components"]["schemas"]["ErrorBody"]["properties"]) == {"error"}
    assert "temperature" in page.text
    assert "http://" not in page.text.replace(gateway.url, "")
    assert "https://" not in page.text


async def test_a_flex_request_is_offline_and_says_so(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(5)
    async with gateway.http() as client:
        response = await client.post(
            "/v1/completions", json=completion_body(service_tier="flex", stream=True)
        )
    assert gateway.engine.received[0].request_class == "offline"
    assert '"service_tier":"flex"' in response.text
