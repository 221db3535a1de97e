"""Whatever the API's own document allows gets an answer or an error of the published shape, never a 500."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from gateway.db import Database
from tests.builders.engine_messages import engine_description
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.builders.operators import operator_secret
from tests.builders.store import make_customer
from tests.builders.stored_gateway import SHARED, stored_gateway
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import WebSocketEngine, answer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning"),  # the library's own
]

STATUSES = {200, 400, 404, 503, 504}
MOSTLY_WRONG = {"expires_at", "since", "until", "after", "models"}  # made up: past, malformed or unknown
MANAGEMENT_STATUSES = {200, 201, 400, 404, 409, 413}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_bodies_made_from_the_schema(gateway: GatewayUnderTest, path: str) -> None:
    gateway.engine.script = answer(5, 6, 7)
    await asyncio.to_thread(post_many, gateway.url, path)


def post_many(url: str, path: str) -> None:
    """Sends bodies that the document allows, most of them with a model that exists."""
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    def post(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            case.body["model"] = "tiny"
        response = httpx.post(
            url + path, json=case.body, headers={"Authorization": f"Bearer {GOOD_KEY}"}, timeout=20
        )
        assert response.status_code in STATUSES, (case.body, response.text)
        if response.status_code != 200:
            named = set(response.json()["error"]) - {"reason", "wait_reason"}
            assert named == {"message", "type", "param", "code"}

    post()


@pytest.fixture
async def managed_url(database_url: str) -> AsyncIterator[str]:
    """A gateway with a store."""
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    async with stored_gateway(database_url, engine) as url:
        yield url
    await engine.stop()


@pytest.mark.postgres
async def test_management_requests_made_from_the_schema(database: Database, managed_url: str) -> None:
    """Also with paths of things that exist: most made-up ids are no more than a 404."""
    customer = await make_customer(database)
    known = {
        "tenant": customer.tenant.id,
        "project": str(customer.caller.project),
        "key": str(customer.caller.key),
        "name": "printable",
    }
    secret = await operator_secret(database)
    await asyncio.to_thread(manage_much, managed_url, secret, known)


def manage_much(url: str, secret: str, known: dict[str, str]) -> None:
    """Sends what the document allows to every management route."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json").include(path_regex="^/admin/v1/")
    headers = {"Authorization": f"Bearer {secret}"}
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 10
    with httpx.Client(base_url=url, headers=headers, timeout=20) as client:
        for operation in operations:
            manage(client, operation, known)


def manage(client: httpx.Client, operation: schemathesis.APIOperation, known: dict[str, str]) -> None:
    """Sends one route many requests, half of them about things that exist."""
    statuses = send_many(client, operation, {}) | send_many(client, operation, known)
    assert statuses & {200, 201}, f"nothing came through to {operation.path}"


def send_many(client: httpx.Client, operation: schemathesis.APIOperation, known: dict[str, str]) -> set[int]:
    """The statuses of requests that the document allows, naming what is known."""
    statuses: set[int] = set()

    @given(case=operation.as_strategy())
    @settings(
        max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    def send(case: schemathesis.Case) -> None:
        if known:
            for named in (case.path_parameters, case.query, case.body):
                name_what_exists(named, known)
        request = case.as_transport_kwargs(base_url=str(client.base_url))
        response = client.request(
            case.method, request["url"], params=request["params"], json=request.get("json")
        )
        statuses.add(response.status_code)
        assert response.status_code in MANAGEMENT_STATUSES, (case.method, request, response.text)
        if response.status_code >= 400:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    send()
    return statuses


def name_what_exists(named: object, known: dict[str, str]) -> None:
    """Instead of what is made up, wherever something is named; without what is seldom right by chance."""
    if isinstance(named, dict):
        named.update({name: known[name] for name in named.keys() & known.keys()})
        for name in named.keys() & MOSTLY_WRONG:
            del named[name]
