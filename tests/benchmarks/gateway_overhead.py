"""What a gateway worker costs a request: a loop over an engine that answers at once, no store, no sockets.

Run: python -m tests.benchmarks.gateway_overhead. It prints microseconds of processor time a request, with the
framework's routing, for an answer of 31 tokens.
"""

import asyncio
import json
import logging
import time
from collections.abc import MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from engine.protocol import Finished, FinishReason, TokenDelta, Usage
from gateway.api.application import build_application
from gateway.api.management import Management
from gateway.api.readiness import Readiness
from gateway.api.services import STATE_KEY, Services
from gateway.dispatch import Dispatcher
from gateway.engines.stream import EngineStream
from gateway.generation import Generation
from gateway.logs import configure_logging
from gateway.metrics import GatewayMetrics
from gateway.requests.catalogue import Catalogue
from gateway.settings import GatewaySection
from tests.builders.bodies import chat_body, encoded
from tests.builders.engine_messages import engine_description, token_ids_of
from tests.builders.gateway_under_test import NO_STORE
from tests.fakes.keys import GOOD_KEY, FakeKeys
from tests.fakes.ledger import FakeLedger

NUM_REQUESTS = 3_000
NUM_CONCURRENT = 16
TEXT = "The capital of France is Paris."


class InstantEngine:
    """Answers in the moment of asking, one token an event."""

    connected = True

    def submit(self, stream: EngineStream) -> None:
        request = stream.request
        for token_id in token_ids_of(TEXT):
            stream.push(TokenDelta(request.id, (token_id,)))
        stream.push(Finished(request.id, FinishReason.STOP, Usage(len(request.prompt_ids), 0, len(TEXT))))

    def cancel(self, _: str) -> None:
        return None


class InstantDirectory:
    """One engine with endless room."""

    def __init__(self) -> None:
        self.clients = (InstantEngine(),)

    def serving(self, _: str) -> tuple[InstantEngine, ...]:
        return self.clients

    def with_room(self, *_: object) -> InstantEngine:
        return self.clients[0]


async def application() -> tuple[ASGIApp, Services]:
    """The whole application, with an instant engine and books in memory."""
    catalogue = Catalogue()
    await catalogue.learn(engine_description())
    metrics = GatewayMetrics(CollectorRegistry())
    dispatcher = Dispatcher(InstantDirectory(), metrics, max_queued=1000)  # type: ignore[arg-type]
    services = Services(
        keys=FakeKeys(),
        catalogue=catalogue,
        generation=Generation(
            ledger=FakeLedger(),
            dispatcher=dispatcher,
            metrics=metrics,
            in_flight=metrics.in_flight,
            namespace_secret=b"s",
        ),
        readiness=Readiness(lambda: True),
        metrics=metrics,
        management=Management.connect(NO_STORE, b"pepper"),
        settings=GatewaySection(),
    )

    @asynccontextmanager
    async def no_lifespan(_: object) -> Any:
        yield {}

    return build_application(no_lifespan), services


async def one_request(app: ASGIApp, services: Services, body: bytes) -> None:
    """Drives the application as a server would."""
    answered = asyncio.Event()
    inbox = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if inbox:
            return inbox.pop()
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        elif not message.get("more_body", False):
            answered.set()

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"authorization", f"Bearer {GOOD_KEY}".encode()),
            (b"content-type", b"application/json"),
        ],
        "state": {STATE_KEY: services},
    }
    await app(scope, receive, send)


async def measure(app: ASGIApp, services: Services, body: dict[str, Any]) -> float:
    """Microseconds a request, with several under way at once."""
    content = encoded(body)

    async def client(num_requests: int) -> None:
        for _ in range(num_requests):
            await one_request(app, services, content)

    await client(200)
    started = time.process_time()  # other processes may share the cores
    await asyncio.gather(*(client(NUM_REQUESTS // NUM_CONCURRENT) for _ in range(NUM_CONCURRENT)))
    return (time.process_time() - started) / NUM_REQUESTS * 1e6


async def main() -> None:
    """Prints the figures as JSON."""
    with open("/dev/null", "w") as nowhere:  # noqa: ASYNC230
        configure_logging(nowhere, level=logging.INFO)
        app, services = await application()
        figures = {
            "whole_answer_us": round(await measure(app, services, chat_body())),
            "streamed_answer_us": round(await measure(app, services, chat_body(stream=True))),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main())
