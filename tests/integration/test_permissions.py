"""What a valid key may do: its scopes and its models, behind real HTTP."""

from dataclasses import replace

import pytest

from gateway.db import Database
from gateway.key_administration import issue_key
from gateway.keys.scope import ALL_SCOPES, Scope
from gateway.keys.service import KeyService
from gateway.tenants.errors import BadValue
from tests.builders.bodies import chat_body, completion_body
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.builders.key_checks import bearer
from tests.builders.store import PEPPER, make_customer
from tests.fakes.websocket_engine import answer

ROUTES = [
    ("POST", "/v1/chat/completions", chat_body(), Scope.INFERENCE),
    ("POST", "/v1/completions", completion_body(), Scope.INFERENCE),
    ("GET", "/v1/models", None, Scope.MODELS_READ),
    ("GET", "/v1/models/tiny", None, Scope.MODELS_READ),
]


@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES)
async def test_a_key_without_the_scope_of_a_route_is_told_which_it_lacks(
    gateway: GatewayUnderTest, method: str, path: str, body: object, needed: Scope
) -> None:
    gateway.keys.caller = replace(gateway.keys.caller, scopes=ALL_SCOPES - {needed})
    async with gateway.http() as client:
        response = await client.request(method, path, json=body)
    assert response.status_code == 403
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "insufficient_permissions")
    assert needed in error["message"]
    assert gateway.engine.received == []


@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES)
async def test_the_scope_of_a_route_is_enough(
    gateway: GatewayUnderTest, method: str, path: str, body: object, needed: Scope
) -> None:
    gateway.engine.script = answer(5)
    gateway.keys.caller = replace(gateway.keys.caller, scopes=frozenset({needed}))
    async with gateway.http() as client:
        assert (await client.request(method, path, json=body)).status_code == 200


@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES)
async def test_a_model_that_a_key_may_not_use_does_not_exist(
    gateway: GatewayUnderTest, method: str, path: str, body: object, needed: Scope
) -> None:
    gateway.keys.caller = replace(gateway.keys.caller, models=frozenset({"other"}))
    async with gateway.http() as client:
        response = await client.request(method, path, json=body)
        unknown = await client.get("/v1/models/none")
    if path == "/v1/models":
        assert response.json()["data"] == []
    else:
        assert response.status_code == 404
        assert response.json()["error"] | {"message": ""} == unknown.json()["error"] | {"message": ""}
        assert response.json()["error"]["message"] == "The model 'tiny' does not exist."


async def test_a_model_on_a_key_s_list_can_be_used(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = answer(5)
    gateway.keys.caller = replace(gateway.keys.caller, models=frozenset({"tiny", "other"}))
    async with gateway.http() as client:
        assert (await client.post("/v1/completions", json=completion_body())).status_code == 200
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["tiny"]


@pytest.mark.postgres
async def test_a_key_has_the_scopes_and_models_it_was_issued_with(
    database: Database, keys: KeyService
) -> None:
    await make_customer(database)
    issued = await issue_key(
        database, PEPPER, "test", "acme", name="reader", scopes=[Scope.MODELS_READ], models=["tiny"]
    )
    caller = await keys.authenticate(bearer(issued.secret))
    assert (caller.scopes, caller.models) == ({Scope.MODELS_READ}, {"tiny"})
    assert (issued.key.scopes, issued.key.models) == ((Scope.MODELS_READ,), ("tiny",))


@pytest.mark.postgres
async def test_a_key_may_do_everything_unless_it_is_said(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    caller = await keys.authenticate(bearer(customer.secret))
    assert (caller.scopes, caller.models) == (ALL_SCOPES, None)


@pytest.mark.postgres
@pytest.mark.parametrize("terms", [{"scopes": []}, {"models": []}, {"models": ["two\nlines"]}])
async def test_a_key_that_could_do_nothing_is_not_issued(database: Database, terms: dict[str, list]) -> None:
    await make_customer(database)
    with pytest.raises(BadValue):
        await issue_key(database, PEPPER, "test", "acme", name="useless", **terms)
