"""Signing in: the one-time link, passwords, sessions, and what slows down guessing."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import func, select, text

from gateway.db import Database
from gateway.operators.service import create_invite, has_operator
from gateway.operators.tables import operator_invite, operator_session
from tests.builders.admin_site import PASSWORD, Site, admin_site

pytestmark = pytest.mark.postgres


@pytest.fixture
async def site(database_url: str, database: Database) -> AsyncIterator[Site]:
    async with admin_site(database_url, database) as site:
        yield site


async def run_sql(database: Database, statement: str) -> None:
    async with database.system_transaction() as connection:
        await connection.execute(text(statement))


async def test_the_first_sign_in_is_by_the_link(site: Site) -> None:
    operator = await site.operator()
    assert (await operator.get("/tenants")).status_code == 200


async def test_nobody_can_sign_in_before(site: Site) -> None:
    assert not await has_operator(site.database)


async def test_a_link_works_once(site: Site) -> None:
    token = await create_invite(site.database)
    await site.visitor().submit(f"/setup/{token}", name="ada", password=PASSWORD)
    again = await site.visitor().submit(f"/setup/{token}", name="eve", password=PASSWORD)
    assert again.status_code in (403, 410)
    assert (await site.visitor().submit("/login", name="eve", password=PASSWORD)).status_code == 401


async def test_a_used_link_refuses_a_form_that_was_open_before(site: Site) -> None:
    token = await create_invite(site.database)
    late = site.visitor()
    await late.get(f"/setup/{token}")
    await site.visitor().submit(f"/setup/{token}", name="ada", password=PASSWORD)
    assert (
        await late.submit("/login", action=f"/setup/{token}", name="eve", password=PASSWORD)
    ).status_code == 410


async def test_a_link_expires(site: Site) -> None:
    token = await create_invite(site.database)
    await run_sql(site.database, "UPDATE operator_invite SET expires_at = now()")
    assert (await site.visitor().get(f"/setup/{token}")).status_code == 410


async def test_a_newer_link_voids_the_older(site: Site) -> None:
    older = await create_invite(site.database)
    await create_invite(site.database)
    assert (await site.visitor().get(f"/setup/{older}")).status_code == 410


async def test_the_store_keeps_no_token_of_a_link(site: Site) -> None:
    token = await create_invite(site.database)
    async with site.database.system_transaction() as connection:
        stored = await connection.scalar(select(operator_invite.c.token_hash))
    assert stored is not None
    assert token.encode() not in stored


async def test_a_short_password_is_refused_and_the_link_stays_good(site: Site) -> None:
    token = await create_invite(site.database)
    visitor = site.visitor()
    refused = await visitor.submit(f"/setup/{token}", name="ada", password="short")
    assert (refused.status_code, "at least 12 characters" in refused.text, 'value="ada"' in refused.text) == (
        422,
        True,
        True,
    )
    assert (await visitor.submit(f"/setup/{token}", name="ada", password=PASSWORD)).status_code == 303


async def test_two_operators_cannot_have_one_name(site: Site) -> None:
    await site.operator("ada")
    token = await create_invite(site.database)
    refused = await site.visitor().submit(f"/setup/{token}", name="Ada", password=PASSWORD)
    assert (refused.status_code, "already an operator" in refused.text) == (422, True)


async def test_signing_in_leads_back_to_the_wanted_page(site: Site) -> None:
    await site.operator()
    visitor = site.visitor()
    first = await visitor.get("/keys?tenant=ten_1")
    answer = await visitor.submit(first.headers["location"], action="/login", name="ada", password=PASSWORD)
    assert (answer.status_code, answer.headers["location"]) == (303, "/keys?tenant=ten_1")


async def test_a_wrong_password_and_an_unknown_name_read_the_same(site: Site) -> None:
    await site.operator()
    wrong = await site.visitor().submit("/login", name="ada", password="another password")
    unknown = await site.visitor().submit("/login", name="eve", password="another password")
    assert (wrong.status_code, unknown.status_code) == (401, 401)
    assert all("Name and password do not match." in answer.text for answer in (wrong, unknown))


async def test_guessing_is_slowed_down_even_for_the_right_password(site: Site) -> None:
    await site.operator()
    guesser = site.visitor()
    for _ in range(5):
        await guesser.submit("/login", name="ada", password="a wrong password")
    answer = await guesser.submit("/login", name="ada", password=PASSWORD)
    assert (answer.status_code, answer.headers.get("retry-after")) == (429, "2")


async def test_each_sign_in_makes_a_new_session_and_ends_the_browser_s_old_one(site: Site) -> None:
    operator = await site.operator()
    before = dict(operator.http.cookies)
    await operator.submit("/login", name="ada", password=PASSWORD)
    async with site.database.system_transaction() as connection:
        num_sessions = await connection.scalar(select(func.count()).select_from(operator_session))
    assert dict(operator.http.cookies) != before
    assert num_sessions == 1


async def test_the_session_cookie_is_out_of_reach_of_scripts_and_of_other_sites(site: Site) -> None:
    token = await create_invite(site.database)
    answer = await site.visitor().submit(f"/setup/{token}", name="ada", password=PASSWORD)
    [cookie] = [line for line in answer.headers.get_list("set-cookie") if "sluice_session" in line]
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie


async def test_over_https_cookies_are_secure(site: Site) -> None:
    token = await create_invite(site.database)
    answer = await site.visitor("https://admin.test").submit(f"/setup/{token}", name="ada", password=PASSWORD)
    cookies = answer.headers.get_list("set-cookie")
    assert cookies
    assert all("Secure" in cookie and cookie.startswith("__Host-") for cookie in cookies)


@pytest.mark.parametrize("column", ["last_seen_at", "expires_at"])
async def test_a_session_ends_when_idle_or_old(site: Site, column: str) -> None:
    operator = await site.operator()
    moment = {"last_seen_at": "now() - interval '8 hours'", "expires_at": "now()"}[column]
    await run_sql(site.database, f"UPDATE operator_session SET {column} = {moment}")
    assert (await operator.get("/tenants")).headers["location"] == "/login?next=%2Ftenants"


async def test_a_visit_keeps_the_session_from_being_idle(site: Site) -> None:
    operator = await site.operator()
    await run_sql(site.database, "UPDATE operator_session SET last_seen_at = now() - interval '7 hours'")
    await operator.get("/tenants")
    async with site.database.system_transaction() as connection:
        idle = await connection.scalar(select(func.now() - operator_session.c.last_seen_at))
    assert idle is not None
    assert idle.total_seconds() < 60


async def test_signing_out_ends_the_session_in_the_store(site: Site) -> None:
    operator = await site.operator()
    cookies = dict(operator.http.cookies)
    await operator.submit("/tenants", action="/logout")
    thief = site.visitor()
    thief.http.cookies.update(cookies)
    assert (await thief.get("/tenants")).status_code == 303
