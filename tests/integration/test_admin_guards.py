"""What every route has in common: nobody gets in without a session, no foreign form counts, headers guard."""

from collections.abc import AsyncIterator, Iterator

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from gateway.db import Database
from tests.builders.admin_site import KEY_PEPPER, ORIGIN, Site, admin_site, hidden_fields

pytestmark = pytest.mark.postgres

OPEN_PATHS = {"/healthz", "/login", "/setup/{token}"}


@pytest.fixture
async def site(database_url: str, database: Database) -> AsyncIterator[Site]:
    async with admin_site(database_url, database) as site:
        yield site


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every method and path there is, except the mounted folder of static files."""
    for route in iter_route_contexts(app.routes):
        for method in route.methods or ():
            yield method, str(route.path)


def concrete(path: str) -> str:
    names = {"{tenant_id}": "ten_1", "{key_id}": "key1", "{batch_id}": "batch_1", "{token}": "token1"}
    for place, name in names.items():
        path = path.replace(place, name)
    return path


async def test_every_route_sends_strangers_to_the_sign_in_page(site: Site) -> None:
    guarded = [(method, path) for method, path in routes(site.app) if path not in OPEN_PATHS]
    answers = {
        (method, path): await site.visitor().http.request(method, concrete(path), headers={"Origin": ORIGIN})
        for method, path in guarded
    }
    assert len(answers) >= 21
    open_to_all = {
        place
        for place, answer in answers.items()
        if answer.status_code != 303 or not answer.headers["location"].startswith("/login")
    }
    assert open_to_all == set()


async def test_every_post_without_the_form_token_is_refused(site: Site) -> None:
    operator = await site.operator()
    posts = [path for method, path in routes(site.app) if method == "POST"]
    answers = {path: await operator.post(concrete(path), {"name": "x"}) for path in posts}
    assert {path for path, answer in answers.items() if answer.status_code != 403} == set()


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://admin.test:81"])
async def test_every_post_from_another_origin_is_refused(site: Site, origin: str) -> None:
    operator = await site.operator()
    fields = {**hidden_fields((await operator.get("/tenants/new")).text), "name": "x"}
    posts = [path for method, path in routes(site.app) if method == "POST"]
    answers = {path: await operator.post(concrete(path), fields, Origin=origin) for path in posts}
    assert {path for path, answer in answers.items() if answer.status_code != 403} == set()


async def test_another_operator_s_form_token_is_refused(site: Site) -> None:
    ada, eve = await site.operator("ada"), await site.operator("eve")
    fields = {**hidden_fields((await ada.get("/tenants/new")).text), "name": "x"}
    assert (await eve.post("/tenants", fields)).status_code == 403


async def test_a_form_that_is_too_large_is_refused(site: Site) -> None:
    operator = await site.operator()
    assert (await operator.post("/tenants", {"name": "x" * 70_000})).status_code == 413


@pytest.mark.parametrize(
    "path", ["/login", "/tenants", "/nowhere", "/healthz", "/static/sluice.css", "/setup/x"]
)
async def test_headers_guard_every_answer(site: Site, path: str) -> None:
    headers = (await (await site.operator()).get(path)).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")


async def test_pages_are_not_stored_by_anybody(site: Site) -> None:
    assert (await (await site.operator()).get("/tenants")).headers["cache-control"] == "no-store"


async def test_no_page_has_inline_script_or_style(site: Site) -> None:
    operator = await site.operator()
    for path in ("/", "/tenants", "/tenants/new", "/keys", "/keys/new", "/batches", "/login"):
        html = (await operator.get(path)).text
        assert " style=" not in html
        assert "<style" not in html
        assert " onclick" not in html
        assert "<script>" not in html


async def test_an_unknown_page_is_a_page_of_ours(site: Site) -> None:
    answer = await (await site.operator()).get("/nowhere")
    assert (answer.status_code, "There is no such page." in answer.text) == (404, True)


async def test_healthz_needs_no_session(site: Site) -> None:
    assert (await site.visitor().get("/healthz")).text == "ok\n"


async def test_an_unexpected_error_shows_nothing_of_itself(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = await site.operator()

    async def fail(*_: object) -> None:
        raise RuntimeError(KEY_PEPPER)

    monkeypatch.setattr("gateway.administration.list_tenants", fail)
    answer = await operator.get("/tenants")
    assert (answer.status_code, KEY_PEPPER in answer.text) == (500, False)
    assert "content-security-policy" in answer.headers


async def test_a_lost_database_is_said_plainly(site: Site) -> None:
    operator = await site.operator()
    async with admin_site("postgresql://nobody@127.0.0.1:1/none", site.database) as broken:
        visitor = broken.visitor()
        visitor.http.cookies.update(dict(operator.http.cookies))
        answer = await visitor.get("/tenants")
    assert (answer.status_code, "The database does not answer" in answer.text) == (503, True)
