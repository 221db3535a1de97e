"""The management API over real HTTP: what operators' programs change and see, and what they are told."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from engine.protocol import Usage
from gateway.administration import create_tenant, get_tenant
from gateway.api.body import MAX_BYTES
from gateway.db import Database
from gateway.key_administration import issue_key
from gateway.keys.scope import Scope
from gateway.operators.scopes import OperatorScope
from gateway.usage.queries import record
from tests.builders.bodies import chat_body
from tests.builders.engine_messages import engine_description
from tests.builders.operators import operator_client
from tests.builders.store import PEPPER, Customer, make_customer
from tests.builders.store_rows import rows, value
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway, until_status
from tests.builders.usage import usage_event
from tests.fakes.websocket_engine import WebSocketEngine, answer
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

TENANTS = "/admin/v1/tenants"
KEYS = "/admin/v1/keys"
PROJECTS = "/admin/v1/projects"
LIMITS = "/admin/v1/limits"
USAGE = "/admin/v1/usage"
AUDIT = "/admin/v1/audit"


@pytest.fixture
async def url(database_url: str) -> AsyncIterator[str]:
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    async with stored_gateway(database_url, engine) as url:
        yield url
    await engine.stop()


@pytest.fixture
async def robot(database: Database, url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A program that may do everything."""
    async with await operator_client(database, url, name="robot") as client:
        yield client


async def done(answering: Any, status: int = 200) -> Any:
    response: httpx.Response = await answering
    assert response.status_code == status, response.text
    return response.json()


async def refused(answering: Any, status: int, code: str) -> str:
    error = await done(answering, status)
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["code"] == code
    return str(error["error"]["message"])


async def all_pages(robot: httpx.AsyncClient, path: str, **query: Any) -> list[Any]:
    """Every thing of a list, page by page."""
    found: list[Any] = []
    has_more = True
    while has_more:
        after = {"after": found[-1]["id"]} if found else {}
        page = await done(robot.get(path, params={**query, **after}))
        found, has_more = found + page["data"], page["has_more"]
    return found


async def use_models(database: Database, customer: Customer, num_models: int) -> None:
    """A request for each model, a day after the other, some of them of as many tokens."""
    who = {"tenant": customer.tenant.id, "project": customer.caller.project, "key": customer.caller.key}
    async with database.system_transaction() as connection:
        for number in range(num_models):
            at = datetime(2026, 1, 5 + number, 12, tzinfo=UTC)
            used = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=7 + number % 2)
            facts = {"model": f"model-{number}", "usage": used, "admitted_at": at}
            await record(connection, [usage_event(f"request-{number}", **who | facts)])


# --- tenants -----------------------------------------------------------------------------------------------


async def test_a_tenant_is_made_shown_by_id_and_name_and_changed(robot: httpx.AsyncClient) -> None:
    made = await done(robot.post(TENANTS, json={"name": "acme", "weight": 2}), 201)
    assert made["object"] == "tenant"
    assert (made["name"], made["weight"], made["enabled"], made["cache_group"]) == ("acme", 2.0, True, None)
    assert await done(robot.get(f"{TENANTS}/{made['id']}")) == made
    assert await done(robot.get(f"{TENANTS}/acme")) == made
    changes = {"weight": 3, "cache_group": "shared", "enabled": False}
    assert await done(robot.patch(f"{TENANTS}/acme", json=changes)) == made | changes
    assert (await done(robot.patch(f"{TENANTS}/acme", json={"cache_group": None})))["cache_group"] is None


async def test_the_same_change_again_leaves_no_trail(robot: httpx.AsyncClient, database_url: str) -> None:
    await done(robot.post(TENANTS, json={"name": "acme"}), 201)
    for _ in range(3):
        await done(robot.patch(f"{TENANTS}/acme", json={"weight": 3, "enabled": False}))
    actions = "SELECT action FROM audit_event WHERE action LIKE 'tenant.%' ORDER BY id"
    assert rows(database_url, actions) == [("tenant.create",), ("tenant.set_weight",), ("tenant.disable",)]


async def test_a_taken_name_is_a_409(robot: httpx.AsyncClient) -> None:
    await done(robot.post(TENANTS, json={"name": "acme"}), 201)
    assert "exists already" in await refused(
        robot.post(TENANTS, json={"name": "acme"}), 409, "already_exists"
    )


REFUSED_CHANGES: list[tuple[object, str | None]] = [
    ({"cache_group": "\x00", "weight": 5}, None),
    ({"weight": 0}, "weight"),
    ({"weight": "much"}, "weight"),
    ({"weigth": 1}, None),
    ([], None),
]


async def test_a_change_that_is_refused_changes_nothing(database: Database, robot: httpx.AsyncClient) -> None:
    tenant = await create_tenant(database, "ana", "acme")
    for changes, param in REFUSED_CHANGES:
        response = await robot.patch(f"{TENANTS}/acme", json=changes)
        assert response.status_code == 400, changes
        assert response.json()["error"]["param"] == param, changes
        assert (await get_tenant(database, "acme")).tenant == tenant, changes


async def test_pages_of_tenants_join_without_a_gap_while_some_are_added(
    database: Database, robot: httpx.AsyncClient
) -> None:
    names = [f"tenant-{number:02}" for number in range(5)]
    for name in names:
        await create_tenant(database, "ana", name)
    seen: list[str] = []
    page: dict[str, Any] = {"has_more": True, "data": []}
    while page["has_more"]:
        after = {"after": page["data"][-1]["id"]} if page["data"] else {}
        page = await done(robot.get(TENANTS, params={"limit": 2, **after}))
        seen += [tenant["name"] for tenant in page["data"]]
        await create_tenant(database, "ana", f"added-{len(seen)}")
    assert seen == names


# --- projects ----------------------------------------------------------------------------------------------


async def test_a_project_is_made_for_keys_to_belong_to(robot: httpx.AsyncClient) -> None:
    tenant = await done(robot.post(TENANTS, json={"name": "acme"}), 201)
    made = await done(robot.post(PROJECTS, json={"tenant": "acme", "name": "search"}), 201)
    assert (made["tenant"], made["tenant_name"], made["name"]) == (tenant["id"], "acme", "search")
    issued = await done(robot.post(KEYS, json={"tenant": "acme", "project": "search", "name": "x"}), 201)
    assert issued["key"]["project"] == made["id"]
    trail = await done(robot.get(AUDIT, params={"subject": made["id"]}))
    assert [event["action"] for event in trail["data"]] == ["project.create"]


async def test_a_project_needs_a_tenant_and_a_free_name(robot: httpx.AsyncClient) -> None:
    await done(robot.post(TENANTS, json={"name": "acme"}), 201)
    twice = robot.post(PROJECTS, json={"tenant": "acme", "name": "default"})
    assert "already" in await refused(twice, 409, "already_exists")
    await refused(robot.post(PROJECTS, json={"tenant": "nobody", "name": "search"}), 404, "not_found")
    await refused(robot.post(PROJECTS, json={"tenant": "acme", "name": ""}), 400, "invalid_value")


async def test_pages_of_projects_are_everybodys_or_one_tenants(robot: httpx.AsyncClient) -> None:
    for tenant in ("beta", "acme"):
        await done(robot.post(TENANTS, json={"name": tenant}), 201)
        for name in ("search", "ads"):
            await done(robot.post(PROJECTS, json={"tenant": tenant, "name": name}), 201)
    names = [
        [project["tenant_name"], project["name"]] for project in await all_pages(robot, PROJECTS, limit=2)
    ]
    assert names == [[tenant, name] for tenant in ("acme", "beta") for name in ("ads", "default", "search")]
    of_beta = await all_pages(robot, PROJECTS, limit=2, tenant="beta")
    assert [project["name"] for project in of_beta] == ["ads", "default", "search"]


# --- keys --------------------------------------------------------------------------------------------------


async def test_a_key_made_here_opens_the_api_until_it_is_revoked(
    database: Database, robot: httpx.AsyncClient, url: str
) -> None:
    await create_tenant(database, "ana", "acme")
    issued = await done(robot.post(KEYS, json={"tenant": "acme", "name": "first"}), 201)
    key = issued["key"]
    assert (key["tenant_name"], key["state"], key["scopes"][0]) == ("acme", "active", "inference")
    assert issued["secret"] not in str(key)
    async with client_of(url, issued["secret"]) as client:
        assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 200
        revoked = await done(robot.post(f"{KEYS}/{key['id']}/revoke"))
        assert revoked["state"] == "revoked"
        assert await done(robot.post(f"{KEYS}/{key['id']}/revoke")) == revoked, "it may be repeated"
        await until_status(client, "POST", "/v1/chat/completions", 401)


async def test_a_rotated_key_has_two_secrets_for_the_overlap(
    database: Database, robot: httpx.AsyncClient, url: str
) -> None:
    customer = await make_customer(database)
    rotate = f"{KEYS}/{customer.caller.key}/rotate"
    issued = await done(robot.post(rotate, json={"overlap_seconds": 60}))
    assert issued["key"]["id"] == customer.caller.key
    assert issued["key"]["previous_expires_at"] is not None
    for secret in (customer.secret, issued["secret"]):
        async with client_of(url, secret) as client:
            assert (await client.get("/v1/models")).status_code == 200


async def test_a_key_is_narrowed_and_lifted_where_it_is_used(
    database: Database, robot: httpx.AsyncClient, url: str
) -> None:
    customer = await make_customer(database)
    path = f"{KEYS}/{customer.caller.key}"
    async with client_of(url, customer.secret) as client:
        await until_status(client, "POST", "/v1/chat/completions", 200)
        narrowed = await done(robot.patch(path, json={"name": "docs", "models": ["other"]}))
        assert (narrowed["name"], narrowed["models"], narrowed["expires_at"]) == ("docs", ["other"], None)
        await until_status(client, "POST", "/v1/chat/completions", 404)
        await done(robot.patch(path, json={"models": None, "scopes": ["files"]}))
        await until_status(client, "POST", "/v1/chat/completions", 403)
        lifted = await done(robot.patch(path, json={"scopes": None, "expires_at": None}))
        assert (lifted["name"], lifted["models"], len(lifted["scopes"])) == ("docs", None, len(Scope))
        await until_status(client, "POST", "/v1/chat/completions", 200)


async def test_a_revoked_key_is_not_changed(database: Database, robot: httpx.AsyncClient) -> None:
    customer = await make_customer(database)
    await done(robot.post(f"{KEYS}/{customer.caller.key}/revoke"))
    changed = robot.patch(f"{KEYS}/{customer.caller.key}", json={"expires_at": None})
    assert "revoked already" in await refused(changed, 400, "invalid_value")


async def test_keys_are_listed_newest_first_of_one_tenant_or_all(
    database: Database, robot: httpx.AsyncClient
) -> None:
    for name in ("acme", "beta"):
        await create_tenant(database, "ana", name)
        for number in range(3):
            await issue_key(database, PEPPER, "ana", name, name=f"{name}-{number}")
    first = await done(robot.get(KEYS, params={"tenant": "acme", "limit": 2}))
    second = await done(robot.get(KEYS, params={"tenant": "acme", "after": first["data"][-1]["id"]}))
    names = [key["name"] for key in first["data"] + second["data"]]
    assert names == ["acme-2", "acme-1", "acme-0"]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert len((await done(robot.get(KEYS)))["data"]) == 6


IMPOSSIBLE_KEYS: list[dict[str, object]] = [
    {"name": "first"},
    {"tenant": "acme", "name": ""},
    {"tenant": "acme", "name": "x", "scopes": ["everything"]},
    {"tenant": "acme", "name": "x", "scopes": []},
    {"tenant": "acme", "name": "x", "expires_at": "2001-01-01T00:00:00Z"},
    {"tenant": "acme", "name": "x", "expires_at": "2999-01-01T00:00:00"},
    {"tenant": "acme", "name": "x", "expires_at": "9999-12-31T23:59:59-12:00"},
]


async def test_a_key_that_cannot_be_is_a_400(database: Database, robot: httpx.AsyncClient) -> None:
    await create_tenant(database, "ana", "acme")
    for body in IMPOSSIBLE_KEYS:
        response = await robot.post(KEYS, json=body)
        assert response.status_code == 400, (body, response.text)
        assert (await done(robot.get(KEYS)))["data"] == [], body


# --- limits ------------------------------------------------------------------------------------------------


async def test_a_limit_is_set_shown_with_its_use_and_lifted(
    database: Database, robot: httpx.AsyncClient, url: str
) -> None:
    customer = await make_customer(database)
    what = {"tenant": "acme", "kind": "tokens_per_day", "key": customer.caller.key}
    limit = await done(robot.put(LIMITS, json=what | {"value": 10_000}))
    assert (limit["scope"], limit["scope_id"], limit["used"]) == ("key", customer.caller.key, 0)
    async with client_of(url, customer.secret) as client:
        await done(client.post("/v1/chat/completions", json=chat_body()))
        async with asyncio.timeout(20):
            while (await all_pages(robot, LIMITS, tenant="acme"))[0]["used"] == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await done(robot.put(LIMITS, json=what | {"value": 0}))
        await until_status(client, "POST", "/v1/chat/completions", 429)
        lifted = await done(robot.delete(LIMITS, params=what))
        assert (lifted["object"], lifted["deleted"]) == ("limit", True)
        await until_status(client, "POST", "/v1/chat/completions", 200)
    assert await all_pages(robot, LIMITS, tenant="acme") == []


async def test_the_same_limit_again_leaves_no_trail(
    database: Database, robot: httpx.AsyncClient, database_url: str
) -> None:
    await make_customer(database)
    wanted = {"tenant": "acme", "kind": "tokens_per_day", "model": "tiny", "request_class": "offline"}
    for value_wanted in (7, 7, 8):
        limit = await done(robot.put(LIMITS, json=wanted | {"value": value_wanted}))
        assert (limit["value"], limit["model"], limit["request_class"]) == (value_wanted, "tiny", "offline")
    for _ in range(2):
        await done(robot.delete(LIMITS, params=wanted))
    changes = "SELECT before->'value', after->'value' FROM audit_event WHERE action = 'limit.set' ORDER BY id"
    assert rows(database_url, changes) == [(None, 7), (7, 8), (8, None)]


async def test_limits_of_all_scopes_come_in_pages(database: Database, robot: httpx.AsyncClient) -> None:
    customer = await make_customer(database)
    await make_customer(database, "other", tokens_per_minute=5)
    scopes = [{}, {"project": "default"}, {"key": customer.caller.key}, {"model": "tiny"}]
    for scope in scopes:
        await done(robot.put(LIMITS, json={"tenant": "acme", "kind": "output_tokens", "value": 9, **scope}))
    limits = await all_pages(robot, LIMITS, limit=3, tenant="acme")
    assert [limit["scope"] for limit in limits] == ["tenant", "project", "key", "tenant"]
    assert {limit["used"] for limit in limits} == {None}, "each request counts alone"


IMPOSSIBLE_LIMITS: list[tuple[dict[str, object], int]] = [
    ({"tenant": "nobody"}, 404),
    ({"project": "nothing"}, 404),
    ({"key": "nothing"}, 404),
    ({"project": "default", "key": "nothing"}, 400),
    ({"value": -1}, 400),
    ({"value": 10**13}, 400),
    ({"value": None}, 400),
    ({"kind": "tokens_per_year"}, 400),
    ({"model": "x" * 5_000}, 400),
    ({"request_class": "urgent"}, 400),
]


async def test_what_cannot_be_limited_is_refused(database: Database, robot: httpx.AsyncClient) -> None:
    await make_customer(database)
    for limit, status in IMPOSSIBLE_LIMITS:
        body = {"tenant": "acme", "kind": "tokens_per_day", "value": 5} | limit
        response = await robot.put(LIMITS, json=body)
        assert response.status_code == status, (limit, response.text)
        assert (await done(robot.get(LIMITS, params={"tenant": "acme"})))["data"] == [], limit


# --- usage -------------------------------------------------------------------------------------------------


async def test_usage_is_reported_by_who_and_when(
    database: Database, robot: httpx.AsyncClient, url: str
) -> None:
    customer = await make_customer(database)
    async with client_of(url, customer.secret) as client:
        await done(client.post("/v1/chat/completions", json=chat_body()))
    async with asyncio.timeout(20):
        while not (report := await done(robot.get(USAGE)))["data"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    (row,) = report["data"]
    assert (row["object"], row["id"], row["name"]) == ("usage_of", customer.tenant.id, "acme")
    assert row["used"] == report["total"]
    assert (row["used"]["num_requests"], report["has_more"], report["next"]) == (1, False, None)
    for by, name in (("project", "default"), ("key", "first"), ("model", "tiny"), ("class", "interactive")):
        report = await done(robot.get(USAGE, params={"by": by, "tenant": "acme"}))
        assert [found["name"] for found in report["data"]] == [name]
    for by in ("minute", "day"):
        report = await done(robot.get(USAGE, params={"by": by}))
        assert [found["used"] for found in report["data"]] == [row["used"]]


@pytest.mark.parametrize("by", ["model", "minute", "day"])
async def test_pages_of_usage_join_to_the_whole(
    database: Database, robot: httpx.AsyncClient, by: str
) -> None:
    customer = await make_customer(database)
    await use_models(database, customer, 5)
    asked = {"by": by, "since": "2026-01-01T00:00:00Z", "until": "2026-02-01T00:00:00Z"}
    whole = await done(robot.get(USAGE, params=asked))
    assert len(whole["data"]) == 5
    found: list[Any] = []
    page: dict[str, Any] = {"next": None, "has_more": True}
    while page["has_more"]:
        after = {} if page["next"] is None else {"after": page["next"]}
        page = await done(robot.get(USAGE, params=asked | {"limit": 2} | after))
        assert page["total"] == whole["total"]
        found += page["data"]
    assert found == whole["data"]


IMPOSSIBLE_REPORTS = [
    ("tenant=nobody", 404),
    ("by=year", 400),
    ("limit=1001", 400),
    ("since=yesterday", 400),
    ("since=2026-01-01T00:00:00", 400),
    ("since=0001-01-01T00:00:00%2B14:00", 400),
    ("until=9999-12-31T23:59:59-12:00", 400),
    ("since=2026-02-01T00:00:00Z&until=2026-01-01T00:00:00Z", 400),
    ("by=day&after=nowhere", 400),
    ("by=day&after=2026-01-01", 400),
    ("by=day&after=9999-12-31T23:59Z", 400),
    ("by=key&after=much:key", 400),
]


async def test_a_report_that_cannot_be_is_refused(robot: httpx.AsyncClient) -> None:
    for query, status in IMPOSSIBLE_REPORTS:
        response = await robot.get(f"{USAGE}?{query}")
        assert response.status_code == status, (query, response.text)


# --- the trail ---------------------------------------------------------------------------------------------


async def test_every_change_is_in_the_trail_under_the_keys_name(
    database: Database, robot: httpx.AsyncClient
) -> None:
    made = await done(robot.post(TENANTS, json={"name": "acme"}), 201)
    await done(robot.patch(f"{TENANTS}/acme", json={"enabled": False}))
    await create_tenant(database, "ana", "beta")
    of_robot = await done(robot.get(AUDIT, params={"actor": "operator key robot"}))
    assert [event["action"] for event in of_robot["data"]] == ["tenant.disable", "tenant.create"]
    of_acme = await done(robot.get(AUDIT, params={"subject": made["id"], "limit": 1}))
    assert [event["action"] for event in of_acme["data"]] == ["tenant.disable"]
    assert (of_acme["data"][0]["before"], of_acme["data"][0]["after"]) == (
        {"enabled": True},
        {"enabled": False},
    )
    assert of_acme["has_more"] is True
    older = await done(robot.get(AUDIT, params={"subject": made["id"], "after": of_acme["data"][0]["id"]}))
    assert [event["action"] for event in older["data"]] == ["tenant.create"]


async def test_no_secret_is_in_the_trail(robot: httpx.AsyncClient, database_url: str) -> None:
    await done(robot.post(TENANTS, json={"name": "acme"}), 201)
    issued = await done(robot.post(KEYS, json={"tenant": "acme", "name": "first"}), 201)
    stored = str(value(database_url, "SELECT json_agg(a)::text FROM audit_event a"))
    assert issued["secret"].rsplit("-", 1)[1][:43] not in stored


# --- what is refused ---------------------------------------------------------------------------------------


NOWHERE = [
    ("GET", f"{TENANTS}/nobody"),
    ("PATCH", f"{TENANTS}/nobody"),
    ("GET", f"{TENANTS}?after=nobody"),
    ("GET", f"{KEYS}/nothing"),
    ("GET", f"{KEYS}?tenant=nobody"),
    ("GET", f"{KEYS}?after=nothing"),
    ("GET", f"{PROJECTS}?tenant=nobody"),
    ("GET", f"{PROJECTS}?after=nothing"),
    ("GET", f"{LIMITS}?tenant=nobody"),
    ("DELETE", f"{LIMITS}?tenant=nobody&kind=tokens_per_day"),
    ("PATCH", f"{KEYS}/nothing"),
    ("POST", f"{KEYS}/nothing/rotate"),
    ("POST", f"{KEYS}/nothing/revoke"),
]


async def test_what_does_not_exist_is_a_404(robot: httpx.AsyncClient) -> None:
    for method, path in NOWHERE:
        asking = robot.request(method, path, json={} if method != "GET" else None)
        assert await refused(asking, 404, "not_found"), path


async def test_a_bad_parameter_is_a_400_that_names_it(robot: httpx.AsyncClient) -> None:
    for query in ("limit=0", "limit=101", "limit=x"):
        assert "'limit'" in await refused(robot.get(f"{TENANTS}?{query}"), 400, "invalid_value"), query


async def test_a_body_over_the_cap_is_a_413(robot: httpx.AsyncClient) -> None:
    await refused(robot.post(TENANTS, content=b" " * (MAX_BYTES + 1)), 413, "request_too_large")


async def test_a_missing_scope_is_a_403_that_names_it(database: Database, url: str) -> None:
    async with await operator_client(database, url, scopes=[OperatorScope.TENANTS_READ]) as client:
        await done(client.get(TENANTS))
        message = await refused(client.post(TENANTS, content=b"{"), 403, "insufficient_permissions")
    assert "'tenants.write'" in message


async def test_a_store_that_is_away_is_a_503_and_never_a_401(
    robot: httpx.AsyncClient, store_switch: StoreSwitch
) -> None:
    await asyncio.to_thread(store_switch.off)
    await refused(robot.get(TENANTS), 503, "store_unavailable")
    await asyncio.to_thread(store_switch.on)
    await until_status(robot, "GET", TENANTS, 200)


async def test_the_document_holds_every_management_route_with_its_errors(robot: httpx.AsyncClient) -> None:
    document = await done(robot.get("/openapi.json"))
    managed = {path: methods for path, methods in document["paths"].items() if path.startswith("/admin/v1")}
    assert {TENANTS, PROJECTS, KEYS, f"{KEYS}/{{key}}/rotate", LIMITS, USAGE, AUDIT} <= managed.keys()
    for operation in (operation for methods in managed.values() for operation in methods.values()):
        assert {"400", "401", "403", "503"} <= operation["responses"].keys()
        assert operation["security"] == [{"operatorKey": []}]
