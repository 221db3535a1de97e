"""Who is let in, who is not, how fast that changes, and what is never shown."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.administration import set_tenant_enabled
from gateway.db import Database
from gateway.errors import InvalidApiKey, StoreUnavailable
from gateway.key_administration import issue_key, list_keys, revoke_key, rotate_key
from gateway.keys.secret import make_key
from gateway.keys.service import KeyService
from tests.builders.key_checks import bearer, seconds_until
from tests.builders.store import PEPPER, make_customer
from tests.builders.store_rows import until_value, value
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres


async def test_a_key_says_who_calls(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    assert await keys.authenticate(bearer(customer.secret)) == customer.caller


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "sk-live-x"])
async def test_a_header_without_a_key_is_refused(keys: KeyService, header: str | None) -> None:
    with pytest.raises(InvalidApiKey):
        await keys.authenticate(header)


async def test_a_key_nobody_issued_is_refused_and_shown_redacted(keys: KeyService) -> None:
    secret = make_key().value
    with pytest.raises(InvalidApiKey, match=f"Incorrect API key provided: sk-…{secret[-4:]}") as caught:
        await keys.authenticate(bearer(secret))
    assert secret not in str(caught.value)


async def test_a_key_made_with_another_pepper_is_refused(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    elsewhere = await issue_key(database, b"another pepper", "test", customer.tenant.id, name="forged")
    with pytest.raises(InvalidApiKey, match="Incorrect"):
        await keys.authenticate(bearer(elsewhere.secret))


async def test_text_that_cannot_be_a_key_never_reaches_the_store(
    database: Database, keys: KeyService, store_switch: StoreSwitch
) -> None:
    store_switch.off()
    with pytest.raises(InvalidApiKey):
        await keys.authenticate("Bearer sk-live-nonsense' OR 1=1 --")


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_no_header_does_anything_but_refuse(header: str) -> None:
    async def check() -> None:
        database = Database.connect("postgresql:///none?host=/nonexistent", application_name="test")
        with pytest.raises(InvalidApiKey):
            await KeyService(database, PEPPER).authenticate("Bearer " + header)

    asyncio.run(check())


async def test_a_revocation_binds_on_every_replica_within_two_seconds(
    database: Database, database_url: str, keys: KeyService
) -> None:
    customer = await make_customer(database)
    other_database = Database.connect(database_url, application_name="other")
    other = KeyService(other_database, PEPPER)
    await other.start()
    for service in (keys, other):
        await service.authenticate(bearer(customer.secret))
    await revoke_key(database, "test", customer.caller.key)
    waits = await asyncio.gather(
        *(seconds_until(service, customer.secret, let_in=False) for service in (keys, other))
    )
    await other.stop()
    await other_database.close()
    assert max(waits) < 2


async def test_disabling_a_tenant_refuses_its_keys_within_two_seconds_and_enabling_lets_them_in(
    database: Database, keys: KeyService
) -> None:
    customer = await make_customer(database)
    await keys.authenticate(bearer(customer.secret))
    await set_tenant_enabled(database, "test", customer.tenant.id, enabled=False)
    assert await seconds_until(keys, customer.secret, let_in=False) < 2
    await set_tenant_enabled(database, "test", customer.tenant.id, enabled=True)
    assert await seconds_until(keys, customer.secret, let_in=True) < 2


async def test_a_cached_key_ends_at_its_expiry(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    issued = await issue_key(database, PEPPER, "test", customer.tenant.id, name="brief", expires_at=soon)
    await keys.authenticate(bearer(issued.secret))
    assert await seconds_until(keys, issued.secret, let_in=False) < 1.1


async def test_a_store_that_is_away_is_no_fault_of_the_key(
    database: Database, keys: KeyService, store_switch: StoreSwitch
) -> None:
    known, unknown = await make_customer(database, "known"), await make_customer(database, "unknown")
    await keys.authenticate(bearer(known.secret))
    store_switch.off()
    assert await keys.authenticate(bearer(known.secret)) == known.caller
    with pytest.raises(StoreUnavailable):
        await keys.authenticate(bearer(unknown.secret))
    store_switch.on()
    assert await keys.authenticate(bearer(unknown.secret)) == unknown.caller


async def test_a_revocation_during_an_outage_binds_when_the_store_is_back(
    database: Database, database_url: str, keys: KeyService, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database)
    await keys.authenticate(bearer(customer.secret))
    store_switch.off()
    store_switch.on()
    await revoke_key(database, "test", customer.caller.key)
    assert await seconds_until(keys, customer.secret, let_in=False) < 3


async def test_an_unknown_key_asks_the_store_once(
    database: Database, keys: KeyService, store_switch: StoreSwitch
) -> None:
    secret = make_key().value
    with pytest.raises(InvalidApiKey):
        await keys.authenticate(bearer(secret))
    store_switch.off()
    with pytest.raises(InvalidApiKey):
        await keys.authenticate(bearer(secret))
    store_switch.on()


async def test_use_is_noted_without_changing_the_key(
    database: Database, database_url: str, keys: KeyService
) -> None:
    customer = await make_customer(database)
    before = value(database_url, "SELECT updated_at FROM api_key")
    await keys.authenticate(bearer(customer.secret))
    await until_value(database_url, "SELECT last_used_at IS NOT NULL FROM api_key", True)
    assert value(database_url, "SELECT updated_at FROM api_key") == before


async def test_a_secret_is_in_no_log_no_repr_and_no_row(
    database: Database,
    database_url: str,
    keys: KeyService,
    store_switch: StoreSwitch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    customer = await make_customer(database)
    issued = await rotate_key(database, PEPPER, "test", customer.caller.key)
    await keys.authenticate(bearer(issued.secret))
    with pytest.raises(InvalidApiKey) as wrong:
        await keys.authenticate(bearer(issued.secret[:-1] + "!"))
    shown = [repr(issued), repr(await list_keys(database)), repr(wrong.value), caplog.text]
    shown.append(str(value(database_url, "SELECT json_agg(a)::text FROM audit_event a")))
    shown.append(str(value(database_url, "SELECT json_agg(k)::text FROM api_key k")))
    canary = issued.secret.rsplit("-", 1)[1][:43]
    assert all(canary not in text for text in shown)


async def test_a_secret_is_in_no_error_of_a_store_that_is_away(
    database: Database, keys: KeyService, store_switch: StoreSwitch, caplog: pytest.LogCaptureFixture
) -> None:
    customer = await make_customer(database)
    store_switch.off()
    with pytest.raises(StoreUnavailable) as caught:
        await keys.authenticate(bearer(customer.secret))
    store_switch.on()
    cause = caught.value.__cause__
    canary = customer.secret.rsplit("-", 1)[1][:43]
    assert canary not in f"{caught.value!r} {cause!r} {caplog.text}"
