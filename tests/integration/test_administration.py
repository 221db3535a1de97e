"""What operators change, what they are told when they may not, and the trail it leaves."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gateway.administration import (
    create_tenant,
    get_tenant,
    list_tenants,
    set_limits,
    set_tenant_enabled,
)
from gateway.audit import queries as audit
from gateway.db import Database
from gateway.engine_administration import set_weight
from gateway.key_administration import issue_key, list_keys, revoke_key, rotate_key
from gateway.quotas.limits import TenantLimits
from gateway.tenants.errors import AdministrationError, AlreadyExists, BadValue, NoSuchThing
from gateway.tenants.ids import KeyId
from tests.builders.store import PEPPER, make_customer

pytestmark = pytest.mark.postgres

LIMITS = TenantLimits(concurrent_requests=4, tokens_per_minute=600)


async def trail(database: Database) -> list[audit.AuditEvent]:
    """Oldest first."""
    async with database.system_transaction() as connection:
        return list(reversed(await audit.newest(connection, limit=100)))


async def test_a_new_tenant_is_listed_with_its_limits(database: Database, database_url: str) -> None:
    tenant = await create_tenant(database, "ana", "acme", limits=LIMITS, weight=2.0)
    (summary,) = await list_tenants(database)
    assert (summary.tenant, summary.limits, summary.num_keys) == (tenant, LIMITS, 0)


async def test_a_taken_name_is_refused_in_one_line(database: Database) -> None:
    await create_tenant(database, "ana", "acme")
    with pytest.raises(AlreadyExists, match=r"^A tenant called 'acme' exists already\.$"):
        await create_tenant(database, "ana", " acme ")


async def test_of_two_who_take_a_name_at_once_one_gets_it(database: Database) -> None:
    answers = await asyncio.gather(
        *(create_tenant(database, "ana", "acme") for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(answer, AlreadyExists) for answer in answers) == 7
    assert len(await list_tenants(database)) == 1


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "two\nlines", "a\x00b"])
async def test_a_name_that_cannot_be_shown_is_refused(database: Database, name: str) -> None:
    with pytest.raises(BadValue, match="A name must be"):
        await create_tenant(database, "ana", name)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_weight_must_be_a_positive_number(database: Database, weight: float) -> None:
    with pytest.raises(BadValue, match="weight"):
        await create_tenant(database, "ana", "acme", weight=weight)


async def test_a_tenant_is_found_by_name_and_by_id(database: Database) -> None:
    tenant = await create_tenant(database, "ana", "acme")
    assert (await get_tenant(database, "acme")).tenant == tenant
    assert (await get_tenant(database, tenant.id)).tenant == tenant


async def test_what_does_not_exist_is_named(database: Database) -> None:
    customer, name = await make_customer(database), "nobody"
    refusals = [
        get_tenant(database, name),
        set_limits(database, "ana", name, LIMITS),
        set_tenant_enabled(database, "ana", name, enabled=False),
        issue_key(database, PEPPER, "ana", name, name="first"),
        revoke_key(database, "ana", KeyId(name)),
        rotate_key(database, PEPPER, "ana", KeyId(name)),
    ]
    for answer in await asyncio.gather(*refusals, return_exceptions=True):
        assert isinstance(answer, NoSuchThing)
        assert repr(name) in str(answer)
    assert len(await list_keys(database, customer.tenant.name)) == 1


async def test_a_key_is_revoked_once(database: Database) -> None:
    customer = await make_customer(database)
    revoked = await revoke_key(database, "ana", customer.caller.key)
    assert revoked.revoked_at is not None
    with pytest.raises(BadValue, match="revoked already"):
        await revoke_key(database, "ana", customer.caller.key)


async def test_only_usable_keys_are_counted(database: Database) -> None:
    customer = await make_customer(database)
    await issue_key(database, PEPPER, "ana", "acme", name="second")
    await revoke_key(database, "ana", customer.caller.key)
    assert (await get_tenant(database, "acme")).num_keys == 1


@pytest.mark.parametrize(
    "expires_at",
    [datetime.now(UTC) - timedelta(seconds=1), datetime(2999, 1, 1)],
    ids=["past", "no time zone"],
)
async def test_an_expiry_must_be_a_moment_to_come(database: Database, expires_at: datetime) -> None:
    await create_tenant(database, "ana", "acme")
    with pytest.raises(BadValue, match="expiry"):
        await issue_key(database, PEPPER, "ana", "acme", name="brief", expires_at=expires_at)


async def test_changed_limits_replace_the_old_ones(database: Database) -> None:
    await create_tenant(database, "ana", "acme", limits=LIMITS)
    await set_limits(database, "ana", "acme", TenantLimits(tokens_per_minute=100))
    assert (await get_tenant(database, "acme")).limits == TenantLimits(tokens_per_minute=100)


async def test_every_change_leaves_who_what_before_and_after(database: Database) -> None:
    tenant = await create_tenant(database, "ana", "acme", limits=LIMITS)
    await set_limits(database, "bo", "acme", TenantLimits())
    issued = await issue_key(database, PEPPER, "ana", "acme", name="first")
    await set_tenant_enabled(database, "ana", "acme", enabled=False)
    await revoke_key(database, "bo", issued.key.id)
    events = await trail(database)
    assert [(event.actor, event.action, event.subject) for event in events] == [
        ("ana", "tenant.create", tenant.id),
        ("bo", "tenant.set_limits", tenant.id),
        ("ana", "key.issue", issued.key.id),
        ("ana", "tenant.disable", tenant.id),
        ("bo", "key.revoke", issued.key.id),
    ]
    assert events[1].before == {"concurrent_requests": 4, "tokens_per_minute": 600}
    assert events[1].after == {"concurrent_requests": None, "tokens_per_minute": None}


async def test_changes_of_a_tenant_at_once_leave_a_trail_of_one_after_the_other(database: Database) -> None:
    await create_tenant(database, "ana", "acme")
    await asyncio.gather(*(set_weight(database, "ana", "acme", weight) for weight in (2.0, 3.0, 4.0, 5.0)))
    before, after = zip(*((event.before, event.after) for event in (await trail(database))[1:]), strict=True)
    assert before == ({"weight": 1.0}, *after[:-1])


async def test_a_change_that_fails_leaves_no_trail(database: Database) -> None:
    await create_tenant(database, "ana", "acme")
    with pytest.raises(AdministrationError):
        await create_tenant(database, "ana", "acme")
    assert len(await trail(database)) == 1
