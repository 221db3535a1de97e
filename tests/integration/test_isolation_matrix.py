"""Every route with every key that should not open it: never data. And no way to an engine past admission.

Routes are taken from the application itself, so that a new one cannot be forgotten.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from gateway.administration import set_tenant_enabled
from gateway.db import Database
from gateway.errors import LimitReached
from gateway.key_administration import revoke_key
from gateway.operator_administration import revoke_operator_key
from gateway.operators.scopes import OperatorScope
from gateway.settings import FilesSection
from tests.builders.batches import make_batch
from tests.builders.engine_messages import engine_description
from tests.builders.files import upload
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.builders.operators import operator_secret
from tests.builders.route_rules import RULES, Open, Operators, Route, Tenants, all_routes
from tests.builders.store import Customer, make_customer
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer


@asynccontextmanager
async def never_started(_: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
    yield {}


ROUTES = all_routes(never_started)


@dataclass(frozen=True, kw_only=True)
class House:
    """A gateway with a tenant that somebody wants to look at, and the keys of everybody who does."""

    url: str
    ours: Customer
    operator: str
    strangers: Mapping[str, str | None]
    another_tenant: str
    operator_without_the_scope: str
    file_id: str
    input_file_id: str
    batch_id: str

    def path(self, route: Route) -> str:
        """Names what is ours wherever the path names something."""
        return self._named(route[1])

    def _named(self, text: str) -> str:
        ours = self.ours.caller
        return text.format(
            tenant=ours.tenant,
            project=ours.project,
            key=ours.key,
            model_id="tiny",
            file_id=self.file_id,
            input_file_id=self.input_file_id,
            batch_id=self.batch_id,
        )

    def _body(self, body: Any) -> Any:
        """A rule's body, which may name what is ours as well."""
        if not isinstance(body, dict):
            return body
        return {name: self._named(value) if isinstance(value, str) else value for name, value in body.items()}

    async def knock(self, route: Route, secret: str | None) -> httpx.Response:
        """What the route answers to a key."""
        rule = RULES[route]
        body, query, upload = (getattr(rule, name, None) for name in ("body", "query", "upload"))
        form: dict[str, Any] = {"json": self._body(body)}
        if upload is not None:
            form = {"data": {"purpose": "batch"}, "files": {"file": ("theirs.jsonl", upload)}}
        async with client_of(self.url, secret or "") as client:
            if secret is None:
                del client.headers["Authorization"]
            return await client.request(route[0], self.path(route), params=query, **form)

    def shows_nothing_of_ours(self, response: httpx.Response) -> bool:
        """Neither in the body nor in a header; a message may repeat an id that the path named."""
        shown = f"{response.text} {response.headers}"
        caller = self.ours.caller
        return not any(text in shown for text in ("ours-canary", caller.project, self.ours.secret[-49:]))


@pytest.fixture
async def house(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[House]:
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    ours = await make_customer(database, "ours-canary")
    async with stored_gateway(database_url, engine, files=FilesSection(directory=tmp_path)) as url:
        yield House(
            file_id=await upload(url, ours.secret, b"{}\n", filename="ours-canary.jsonl"),
            input_file_id=await upload(url, ours.secret, b"{}\n", filename="ours-canary.jsonl"),
            batch_id=await make_batch(database, ours),
            url=url,
            ours=ours,
            operator=await operator_secret(database),
            strangers=await _strangers(database),
            another_tenant=(await make_customer(database, "theirs")).secret,
            operator_without_the_scope=await operator_secret(
                database, scopes=[OperatorScope.OPERATORS_WRITE]
            ),
        )
    await engine.stop()


async def _strangers(database: Database) -> Mapping[str, str | None]:
    """Keys that open nothing."""
    revoked = await make_customer(database, "revoked")
    await revoke_key(database, "test", revoked.caller.key)
    disabled = await make_customer(database, "disabled")
    await set_tenant_enabled(database, "test", disabled.tenant.id, enabled=False)
    operator = await operator_secret(database, name="gone")
    await revoke_operator_key(database, "test", "gone")
    return {
        "no key": None,
        "not a key": "sk-live-nothing",
        "a revoked key": revoked.secret,
        "a disabled tenant's key": disabled.secret,
        "a revoked operator key": operator,
    }


def test_every_route_has_a_rule() -> None:
    assert sorted(ROUTES) == sorted(RULES)


@pytest.mark.postgres
async def test_nothing_is_open_to_who_has_no_valid_key(house: House) -> None:
    for route, rule in RULES.items():
        for who, secret in house.strangers.items():
            response = await house.knock(route, secret)
            expected = 200 if isinstance(rule, Open) else 401
            assert response.status_code == expected, (route, who, response.text)
            assert house.shows_nothing_of_ours(response), (route, who)


@pytest.mark.postgres
async def test_another_tenants_key_finds_nothing_of_ours(house: House) -> None:
    for route, rule in RULES.items():
        response = await house.knock(route, house.another_tenant)
        match rule:
            case Open():
                expected = 200
            case Tenants():
                expected = rule.foreign
            case Operators():
                expected = 401
        assert response.status_code == expected, (route, response.text)
        assert house.shows_nothing_of_ours(response), route


@pytest.mark.postgres
async def test_our_own_key_does_not_manage_and_an_operators_key_does_not_ask(house: House) -> None:
    for route, rule in RULES.items():
        wrong_kind = house.operator if isinstance(rule, Tenants) else house.ours.secret
        response = await house.knock(route, wrong_kind)
        assert response.status_code == (200 if isinstance(rule, Open) else 401), (route, response.text)
        if isinstance(rule, Operators):
            assert "An operator key is wanted" in response.json()["error"]["message"]


@pytest.mark.postgres
async def test_an_operator_key_without_the_scope_is_a_403_everywhere(house: House) -> None:
    managed = [route for route, rule in RULES.items() if isinstance(rule, Operators)]
    for route in managed:
        response = await house.knock(route, house.operator_without_the_scope)
        assert response.status_code == 403, (route, response.text)
        assert house.shows_nothing_of_ours(response), route


@pytest.mark.postgres
async def test_each_route_does_open_with_the_right_key(house: House) -> None:
    for route, rule in RULES.items():
        secret = house.ours.secret if isinstance(rule, Tenants) else house.operator
        response = await house.knock(route, secret)
        assert response.status_code in (200, 201), (route, response.text)


async def test_no_inference_route_bypasses_the_one_admission(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(5)
    posts = [route for route in ROUTES if route[0] == "POST" and route[1].startswith("/v1")]
    at_the_engine = [route for route in posts if await _reaches_the_engine(gateway, route)]
    assert {path for _, path in at_the_engine} >= {"/v1/chat/completions", "/v1/completions"}
    gateway.ledger.failure = LimitReached(
        "No.", limit_type="tokens", code="rate_limit_exceeded", retry_after_seconds=1
    )
    for route in posts:
        assert not await _reaches_the_engine(gateway, route), f"{route} gets by without admission"


async def _reaches_the_engine(gateway: GatewayUnderTest, route: Route) -> bool:
    before = len(gateway.engine.received)
    async with gateway.http() as client:
        await client.post(route[1], json=getattr(RULES[route], "body", None))
    return len(gateway.engine.received) > before
