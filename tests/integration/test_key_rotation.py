"""A key gets a new secret while its clients still use the old one."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gateway.audit import queries as audit
from gateway.db import Database
from gateway.errors import InvalidApiKey
from gateway.key_administration import issue_key, list_keys, revoke_key, rotate_key
from gateway.keys.service import KeyService
from gateway.tenants.errors import BadValue
from tests.builders.key_checks import bearer, is_let_in, seconds_until
from tests.builders.store import PEPPER, Customer, make_customer
from tests.builders.store_rows import value
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres


async def rotate(database: Database, customer: Customer, **overlap: float) -> str:
    """The new secret; `overlap` as a timedelta takes it, without it the default."""
    options = {"overlap": timedelta(**overlap)} if overlap else {}
    return (await rotate_key(database, PEPPER, "test", customer.caller.key, **options)).secret


async def test_both_secrets_of_a_rotated_key_are_the_same_caller(
    database: Database, keys: KeyService
) -> None:
    customer = await make_customer(database)
    new = await rotate(database, customer)
    for secret in (customer.secret, new):
        assert await keys.authenticate(bearer(secret)) == customer.caller
    assert len(await list_keys(database)) == 1


async def test_the_old_secret_ends_with_the_overlap(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    new = await rotate(database, customer, seconds=1)
    assert await is_let_in(keys, customer.secret)
    assert await seconds_until(keys, customer.secret, let_in=False) < 1.1
    await asyncio.sleep(0.3)  # a process that knew the key ends it sooner than the store, by its way there
    with pytest.raises(InvalidApiKey, match="expired"):
        await KeyService(database, PEPPER).authenticate(bearer(customer.secret))
    assert await is_let_in(keys, new)


async def test_the_old_secret_ends_by_the_clock_while_the_store_is_away(
    database: Database, keys: KeyService, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database)
    new = await rotate(database, customer, seconds=1)
    for secret in (customer.secret, new):
        await keys.authenticate(bearer(secret))
    store_switch.off()
    assert await seconds_until(keys, customer.secret, let_in=False) < 1.1
    assert await is_let_in(keys, new)
    store_switch.on()


async def test_without_an_overlap_the_old_secret_ends_everywhere_within_two_seconds(
    database: Database, database_url: str, keys: KeyService
) -> None:
    customer = await make_customer(database)
    await keys.authenticate(bearer(customer.secret))
    new = await rotate(database, customer, hours=0)
    assert await seconds_until(keys, customer.secret, let_in=False) < 2
    assert await is_let_in(keys, new)


async def test_a_second_rotation_during_an_overlap_ends_the_oldest_secret(
    database: Database, keys: KeyService
) -> None:
    customer = await make_customer(database)
    second = await rotate(database, customer)
    assert await is_let_in(keys, customer.secret)
    third = await rotate(database, customer)
    assert await seconds_until(keys, customer.secret, let_in=False) < 2
    assert [await is_let_in(keys, secret) for secret in (second, third)] == [True, True]


async def test_revoking_a_key_ends_both_of_its_secrets(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    secrets = [customer.secret, await rotate(database, customer)]
    for secret in secrets:
        await keys.authenticate(bearer(secret))
    await revoke_key(database, "test", customer.caller.key)
    waits = await asyncio.gather(*(seconds_until(keys, secret, let_in=False) for secret in secrets))
    assert max(waits) < 2


async def test_an_old_secret_does_not_outlive_its_key(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    brief = await issue_key(database, PEPPER, "test", customer.tenant.id, name="brief", expires_at=soon)
    await rotate_key(database, PEPPER, "test", brief.key.id)
    await keys.authenticate(bearer(brief.secret))
    assert await seconds_until(keys, brief.secret, let_in=False) < 1.1
    with pytest.raises(BadValue, match="has expired"):
        await rotate_key(database, PEPPER, "test", brief.key.id)


@pytest.mark.parametrize("hours", [-1, 30 * 24 + 1])
async def test_an_overlap_is_at_most_thirty_days(database: Database, hours: int) -> None:
    customer = await make_customer(database)
    with pytest.raises(BadValue, match="0 to 30 days"):
        await rotate(database, customer, hours=hours)


async def test_a_rotation_says_until_when_the_old_secret_works(database: Database) -> None:
    customer = await make_customer(database)
    await rotate(database, customer)
    (key,) = await list_keys(database)
    now = datetime.now(UTC)
    ends_at = key.overlap_ends_at(now)
    assert ends_at is not None
    assert abs(ends_at - now - timedelta(hours=24)) < timedelta(minutes=1)
    assert key.overlap_ends_at(ends_at) is None
    assert key.previous_redacted_value == f"sk-…{customer.secret[-4:]}"


async def test_a_rotation_is_in_the_trail_with_both_redacted_values(database: Database) -> None:
    customer = await make_customer(database)
    new = await rotate(database, customer)
    async with database.system_transaction() as connection:
        (event,) = await audit.newest(connection, limit=1)
    assert (event.action, event.subject) == ("key.rotate", customer.caller.key)
    assert event.before is not None
    assert event.after is not None
    assert event.before["redacted_value"] == event.after["previous_redacted_value"]
    assert event.after["redacted_value"] == f"sk-…{new[-4:]}"


async def test_of_two_rotations_at_once_the_later_one_s_secret_is_the_newest(
    database: Database, database_url: str, keys: KeyService
) -> None:
    customer = await make_customer(database)
    secrets = await asyncio.gather(*(rotate(database, customer) for _ in range(2)))
    assert [await is_let_in(keys, secret) for secret in secrets] == [True, True]
    assert value(database_url, "SELECT count(*) FROM audit_event WHERE action = 'key.rotate'") == 2
