"""What an operator does on the pages, and what the store has afterwards."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html import unescape

import pytest
from sqlalchemy import select

from gateway import administration, key_administration
from gateway.audit.tables import audit_event
from gateway.db import Database
from gateway.quotas.limits import TenantLimits
from tests.builders.admin_site import Site, Visitor, admin_site

pytestmark = pytest.mark.postgres


@pytest.fixture
async def site(database_url: str, database: Database) -> AsyncIterator[Site]:
    async with admin_site(database_url, database, admin={"api_url": "http://api.test:8080/"}) as site:
        yield site


@pytest.fixture
async def operator(site: Site) -> Visitor:
    return await site.operator()


async def tenant_id(site: Site, name: str = "acme") -> str:
    return (await administration.create_tenant(site.database, "test", name)).id


async def issue(operator: Visitor, tenant: str, **fields: str) -> str:
    """Issues a key and returns the path of the page with its secret."""
    answer = await operator.submit("/keys/new", action="/keys", tenant=tenant, name="website", **fields)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def secret_in(page: str) -> str:
    """The key that the page shows."""
    return re.findall(r"sk-[a-z]+-\w{12}-\w{49}", page)[0]


async def test_an_empty_store_says_what_to_do_next(operator: Visitor) -> None:
    assert "No tenants yet" in (await operator.get("/tenants")).text
    assert "First, a tenant" in (await operator.get("/keys")).text


async def test_a_tenant_is_created_with_limits(site: Site, operator: Visitor) -> None:
    await operator.submit(
        "/tenants/new", action="/tenants", name="acme", concurrent_requests="8", tokens_per_minute="60,000"
    )
    [summary] = await administration.list_tenants(site.database)
    assert (summary.tenant.name, summary.limits) == (
        "acme",
        TenantLimits(concurrent_requests=8, tokens_per_minute=60_000),
    )


async def test_a_change_is_told_once_on_the_next_page(operator: Visitor) -> None:
    answer = await operator.submit("/tenants/new", action="/tenants", name="acme")
    pages = [(await operator.get(answer.headers["location"])).text for _ in range(2)]
    assert ["Tenant acme is created." in page for page in pages] == [True, False]


async def test_the_operator_is_the_actor_of_a_change(site: Site, operator: Visitor) -> None:
    await operator.submit("/tenants/new", action="/tenants", name="acme")
    async with site.database.system_transaction() as connection:
        rows = (await connection.execute(select(audit_event.c.actor, audit_event.c.action))).all()
    assert [tuple(row) for row in rows] == [("ada", "tenant.create")]


async def test_a_taken_name_is_said_beside_the_form_and_the_input_kept(site: Site, operator: Visitor) -> None:
    await tenant_id(site, "acme")
    answer = await operator.submit("/tenants/new", action="/tenants", name="acme", tokens_per_minute="77")
    assert (answer.status_code, "already a tenant of this name" in answer.text) == (422, True)
    assert 'value="acme"' in answer.text
    assert 'value="77"' in answer.text


async def test_a_wrong_limit_is_said_at_its_field(site: Site, operator: Visitor) -> None:
    path = f"/tenants/{await tenant_id(site)}"
    answer = await operator.submit(path, action=f"{path}/limits", concurrent_requests="a few")
    assert answer.status_code == 422
    assert 'id="concurrent_requests-error"' in answer.text
    assert 'value="a few"' in answer.text


async def test_limits_are_changed_and_taken_away(site: Site, operator: Visitor) -> None:
    path = f"/tenants/{await tenant_id(site)}"
    for typed, stored in (("5", 5), ("", None)):
        await operator.submit(path, action=f"{path}/limits", concurrent_requests=typed)
        [summary] = await administration.list_tenants(site.database)
        assert summary.limits.concurrent_requests == stored


async def test_a_tenant_is_disabled_and_enabled(site: Site, operator: Visitor) -> None:
    path = f"/tenants/{await tenant_id(site)}"
    for verb, is_disabled in (("disable", True), ("enable", False)):
        await operator.submit(path, action=f"{path}/{verb}")
        [summary] = await administration.list_tenants(site.database)
        assert (summary.tenant.disabled_at is not None) is is_disabled


async def test_a_key_s_secret_is_shown_once(site: Site, operator: Visitor) -> None:
    path = await issue(operator, await tenant_id(site))
    first, second = await operator.get(path), await operator.get(path)
    assert re.search(r"sk-[a-z]+-\w{12}-\w{49}", first.text)
    assert (second.status_code, second.headers["location"]) == (303, "/keys")


async def test_a_key_s_secret_is_not_shown_to_another_operator(site: Site, operator: Visitor) -> None:
    path = await issue(operator, await tenant_id(site))
    assert (await (await site.operator("eve")).get(path)).status_code == 303


async def test_the_new_key_comes_with_a_curl_line_for_the_api(site: Site, operator: Visitor) -> None:
    page = unescape((await operator.get(await issue(operator, await tenant_id(site)))).text)
    assert "curl http://api.test:8080/v1/chat/completions" in page
    assert re.search(r"-H 'Authorization: Bearer sk-[a-z]+-", page)


async def test_the_list_shows_a_redacted_key_only(site: Site, operator: Visitor) -> None:
    secret = secret_in((await operator.get(await issue(operator, await tenant_id(site)))).text)
    page = (await operator.get("/keys")).text
    assert (secret in page, secret[-4:] in page, "website" in page) == (False, True, True)


async def test_a_key_is_revoked_after_asking(site: Site, operator: Visitor) -> None:
    await issue(operator, await tenant_id(site))
    [key] = await key_administration.list_keys(site.database)
    await operator.submit(f"/keys/{key.id}/revoke")
    [revoked] = await key_administration.list_keys(site.database)
    assert revoked.revoked_at is not None


async def test_a_key_is_rotated_after_asking_and_both_secrets_are_said(site: Site, operator: Visitor) -> None:
    old = secret_in((await operator.get(await issue(operator, await tenant_id(site)))).text)
    [key] = await key_administration.list_keys(site.database)
    assert "24 hours to change over" in (await operator.get(f"/keys/{key.id}/rotate")).text
    answer = await operator.submit(f"/keys/{key.id}/rotate")
    new = secret_in((await operator.get(answer.headers["location"])).text)
    page = (await operator.get("/keys")).text
    assert (new != old, old[-4:] in page, new[-4:] in page) == (True, True, True)
    [rotated] = await key_administration.list_keys(site.database)
    assert rotated.overlap_ends_at(datetime.now(UTC)) is not None
    assert "ends at once" in (await operator.get(f"/keys/{key.id}/rotate")).text


async def test_revoking_twice_changes_nothing_and_says_so(site: Site, operator: Visitor) -> None:
    await issue(operator, await tenant_id(site))
    [key] = await key_administration.list_keys(site.database)
    answers = [await operator.submit(f"/keys/{key.id}/revoke") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [303, 409]


async def test_keys_of_one_tenant_can_be_shown_alone(site: Site, operator: Visitor) -> None:
    acme, other = await tenant_id(site, "acme"), await tenant_id(site, "other")
    await issue(operator, acme)
    assert "website" not in (await operator.get(f"/keys?tenant={other}")).text


async def test_what_does_not_exist_is_not_found(operator: Visitor) -> None:
    for path in ("/tenants/ten_none", "/keys/none/revoke", "/keys/none/rotate"):
        assert (await operator.get(path)).status_code == 404, path


async def test_a_hostile_name_is_text(site: Site, operator: Visitor) -> None:
    tenant = await tenant_id(site, "<script>alert(1)</script>")
    await issue(operator, tenant)
    for page in ("/tenants", f"/tenants/{tenant}", "/keys", "/keys/new", f"/keys?tenant={tenant}"):
        html = (await operator.get(page)).text
        assert ("<script>alert" in html, "&lt;script&gt;alert(1)" in html) == (False, True), page


async def test_a_hostile_name_is_text_in_the_message_too(operator: Visitor) -> None:
    answer = await operator.submit("/tenants/new", action="/tenants", name="<img src=x>")
    assert "Tenant &lt;img src=x&gt; is created." in (await operator.get(answer.headers["location"])).text


async def test_the_overview_without_an_engine_says_so(operator: Visitor) -> None:
    html = (await operator.get("/")).text
    assert "The engine does not answer." in html
    assert "Unreachable" in html
