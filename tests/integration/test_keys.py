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
from gateway.key_administration import change_key, issue_key, list_keys, revoke_key, rotate_key
from gateway.keys.key import KeyTerms
from gateway.keys.secret import make_key, renew_key
from gateway.keys.service import POLL_SECONDS, KeyService
from gateway.tenants.errors import BadValue
from tests.benchmarks.key_verification import check
from tests.builders.key_checks import age_keys, bearer, seconds_until, until_caller
from tests.builders.statements import counted_statements
from tests.builders.store import PEPPER, make_customer
from tests.builders.store_rows import until_value, value
from tests.fakes.slow_database import SlowDatabase
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

GOOD_SHAPE = make_key().value


async def test_a_key_says_who_calls(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    assert await keys.authenticate(bearer(customer.secret)) == customer.caller


async def test_a_keys_new_weight_counts_within_two_seconds(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    issued = await issue_key(database, PEPPER, "test", "acme", name="heavy", weight=3.0)
    assert (await keys.authenticate(bearer(issued.secret))).key_weight == 3.0
    await change_key(database, "test", issued.key.id, KeyTerms(weight=0.5))
    await until_caller(keys, issued.secret, lambda caller: caller.key_weight == 0.5)
    assert (await keys.authenticate(bearer(customer.secret))).key_weight == 1.0


async def test_the_weight_of_a_key_that_is_revoked_stays(database: Database) -> None:
    customer = await make_customer(database)
    await revoke_key(database, "test", customer.caller.key)
    with pytest.raises(BadValue, match="is revoked already"):
        await change_key(database, "test", customer.caller.key, KeyTerms(weight=2.0))


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


@pytest.mark.parametrize(
    "junk",
    [
        "sk-live-nonsense' OR 1=1 --",
        "sk-live-' OR true; -- -" + "a" * 49,
        GOOD_SHAPE[:-1] + ("a" if GOOD_SHAPE[-1] != "a" else "b"),
        GOOD_SHAPE[:-1],
        GOOD_SHAPE + "a",
        GOOD_SHAPE.replace("live", "test"),
        "a" * 60_000,
    ],
    ids=["injection", "injection in shape", "checksum", "too short", "too long", "other place", "huge"],
)
async def test_sql_in_the_bearer_key_and_other_junk_is_refused_before_any_sql(
    database_url: str, junk: str
) -> None:
    database = Database.connect(database_url, application_name="test")
    with counted_statements() as statements, pytest.raises(InvalidApiKey):
        await KeyService(database, PEPPER).authenticate(bearer(junk))
    assert statements.texts == []
    await database.close()


async def test_a_key_nobody_issued_costs_one_statement_and_none_the_next_time(database: Database) -> None:
    keys, unknown = KeyService(database, PEPPER), bearer(make_key().value)
    async with database.system_transaction():
        pass  # a new connection sends some of its own
    for num_statements in (1, 0):
        with counted_statements() as statements, pytest.raises(InvalidApiKey):
            await keys.authenticate(unknown)
        assert len(statements) == num_statements


async def test_a_key_made_a_moment_ago_goes_on_when_the_store_goes_away(
    database: Database, keys: KeyService, store_switch: StoreSwitch
) -> None:
    """Polls overlap, and each of them forgot it again for twenty seconds."""
    customer = await make_customer(database)
    await asyncio.sleep(2 * POLL_SECONDS)  # the change has been heard of
    await keys.authenticate(bearer(customer.secret))
    await asyncio.sleep(2 * POLL_SECONDS)  # a poll hears of it again
    store_switch.off()
    assert await keys.authenticate(bearer(customer.secret)) == customer.caller


async def test_a_hot_key_that_has_just_changed_costs_one_statement_whoever_asks_meanwhile(
    database: Database,
) -> None:
    keys, customer = KeyService(database, PEPPER), await make_customer(database)
    with counted_statements() as statements:
        callers = await asyncio.gather(*(keys.authenticate(bearer(customer.secret)) for _ in range(64)))
    assert callers == [customer.caller] * 64
    assert len(statements) == 1


async def test_one_who_leaves_while_a_key_is_looked_up_takes_nobody_along(database: Database) -> None:
    keys, customer = KeyService(database, PEPPER), await make_customer(database)
    first, second = (asyncio.create_task(keys.authenticate(bearer(customer.secret))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == customer.caller


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_whatever_a_header_holds_it_is_refused_before_any_sql(header: str) -> None:
    async def check() -> None:
        database = Database.connect("postgresql:///none?host=/nonexistent", application_name="test")
        with pytest.raises(InvalidApiKey):
            await KeyService(database, PEPPER).authenticate("Bearer " + header)

    asyncio.run(check())


async def test_a_revoked_key_is_refused_on_every_replica_within_two_seconds(
    database: Database, database_url: str, keys: KeyService
) -> None:
    customer = await make_customer(database)
    age_keys(database_url)
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


async def test_a_store_that_was_away_does_not_refuse_keys_for_ever(
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


async def test_an_unknown_key_while_the_store_is_away_is_never_refused_as_wrong(
    keys: KeyService, store_switch: StoreSwitch
) -> None:
    store_switch.off()
    for secret in (make_key().value, make_key().value):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await keys.authenticate(bearer(secret))
    store_switch.on()
    with pytest.raises(InvalidApiKey):
        await keys.authenticate(bearer(make_key().value))


async def test_a_request_in_flight_does_not_write_its_old_copy_of_a_key_back(
    database: Database, database_url: str
) -> None:
    asked, cached = await make_customer(database, "asked"), await make_customer(database, "cached")
    slow_database = SlowDatabase.connect(database_url, application_name="slow")
    keys = KeyService(slow_database, PEPPER)
    await keys.authenticate(bearer(cached.secret))
    async with slow_database.late_answers() as answers:
        in_flight = asyncio.create_task(keys.authenticate(bearer(asked.secret)))
        await answers.are_waiting.wait()
    for customer in (asked, cached):
        await revoke_key(database, "test", customer.caller.key)
    await keys.start()
    await seconds_until(keys, cached.secret, let_in=False)  # now the revocations are seen
    answers.may_arrive.set()
    assert await in_flight == asked.caller, "it asked before"
    with pytest.raises(InvalidApiKey, match="revoked"):
        await keys.authenticate(bearer(asked.secret))
    await keys.stop()
    await slow_database.close()


async def test_keys_that_begin_alike_are_told_apart(database: Database, keys: KeyService) -> None:
    customer = await make_customer(database)
    await keys.authenticate(bearer(customer.secret))
    alike = renew_key(customer.caller.key).value
    assert alike[:21] == customer.secret[:21]
    with pytest.raises(InvalidApiKey, match="Incorrect"):
        await keys.authenticate(bearer(alike))
    assert await keys.authenticate(bearer(customer.secret)) == customer.caller


async def test_checking_a_known_key_takes_microseconds_and_no_sql(database: Database) -> None:
    customer = await make_customer(database)
    figure = await check(KeyService(database, PEPPER), customer.secret, num_checks=5_000)
    assert figure.num_statements == 0
    assert figure.microseconds < 10


async def test_use_is_noted_by_the_poll_and_not_by_the_request(database: Database, database_url: str) -> None:
    customer, keys = await make_customer(database), KeyService(database, PEPPER)
    for _ in range(3):
        await keys.authenticate(bearer(customer.secret))
    assert value(database_url, "SELECT last_used_at FROM api_key") is None
    await keys.start()
    await until_value(database_url, "SELECT last_used_at IS NOT NULL FROM api_key", True)
    await keys.stop()


async def test_a_key_that_is_used_no_more_keeps_its_last_use(
    database: Database, database_url: str, keys: KeyService
) -> None:
    customer = await make_customer(database)
    await keys.authenticate(bearer(customer.secret))
    await until_value(database_url, "SELECT last_used_at IS NOT NULL FROM api_key", True)
    last_use = value(database_url, "SELECT last_used_at FROM api_key")
    await asyncio.sleep(POLL_SECONDS + 0.3)
    assert value(database_url, "SELECT last_used_at FROM api_key") == last_use


async def test_use_that_the_store_was_away_for_is_noted_afterwards(
    database: Database, database_url: str, store_switch: StoreSwitch
) -> None:
    customer, keys = await make_customer(database), KeyService(database, PEPPER)
    await keys.authenticate(bearer(customer.secret))
    store_switch.off()
    await keys.start()
    await asyncio.sleep(0.2)  # a poll in vain
    store_switch.on()
    await until_value(database_url, "SELECT last_used_at IS NOT NULL FROM api_key", True)
    await keys.stop()


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
