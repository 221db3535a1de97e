"""A key's terms change while its clients use it: everywhere within two seconds, and with a trail."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from gateway.audit import queries as audit
from gateway.audit.queries import AuditEvent
from gateway.db import Database
from gateway.key_administration import change_key, get_key, issue_key, revoke_key, rotate_key
from gateway.keys.caller import Caller
from gateway.keys.key import KeyTerms
from gateway.keys.scope import Scope
from gateway.keys.service import KeyService
from gateway.tenants.errors import BadValue, NoSuchThing
from gateway.tenants.ids import KeyId
from tests.builders.command_line import Command
from tests.builders.key_checks import age_keys, bearer, is_let_in, seconds_until
from tests.builders.store import PEPPER, Customer, make_customer
from tests.builders.store_rows import rows

pytestmark = pytest.mark.postgres

NEXT_YEAR = datetime.now(UTC) + timedelta(days=365)


@pytest.fixture
async def customer(database: Database, database_url: str) -> Customer:
    customer = await make_customer(database)
    age_keys(database_url)
    return customer


@pytest.fixture
async def replicas(
    database: Database, database_url: str, keys: KeyService
) -> AsyncIterator[list[KeyService]]:
    """Two that check keys, each with connections of its own."""
    other_database = Database.connect(database_url, application_name="other")
    other = KeyService(other_database, PEPPER)
    await other.start()
    yield [keys, other]
    await other.stop()
    await other_database.close()


async def change(database: Database, customer: Customer, **terms: object) -> None:
    await change_key(database, "ana", customer.caller.key, KeyTerms(**terms))  # type: ignore[typeddict-item]  # names are checked by the store


async def newest_event(database: Database) -> AuditEvent:
    async with database.system_transaction() as connection:
        (event,) = await audit.newest(connection, limit=1)
    return event


async def seconds_until_caller(
    keys: KeyService, customer: Customer, is_as_wanted: Callable[[Caller], bool]
) -> float:
    """How long a replica goes on with what the key was."""
    begun = asyncio.get_running_loop().time()
    async with asyncio.timeout(10):
        while not is_as_wanted(await keys.authenticate(bearer(customer.secret))):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return asyncio.get_running_loop().time() - begun


@pytest.mark.parametrize(
    ("terms", "is_as_wanted"),
    [
        ({"scopes": [Scope.FILES]}, lambda caller: caller.scopes == {Scope.FILES}),
        ({"models": ["tiny"]}, lambda caller: caller.models == {"tiny"}),
    ],
    ids=["scopes", "models"],
)
async def test_a_narrower_key_is_so_on_every_replica_within_two_seconds(
    database: Database,
    customer: Customer,
    replicas: list[KeyService],
    terms: dict[str, object],
    is_as_wanted: Callable[[Caller], bool],
) -> None:
    for keys in replicas:
        assert await keys.authenticate(bearer(customer.secret)) == customer.caller
    await change(database, customer, **terms)
    waits = [seconds_until_caller(keys, customer, is_as_wanted) for keys in replicas]
    assert max(await asyncio.gather(*waits)) < 2


async def test_an_earlier_end_binds_on_every_replica_and_a_later_one_lets_in_again(
    database: Database, customer: Customer, replicas: list[KeyService]
) -> None:
    for keys in replicas:
        await keys.authenticate(bearer(customer.secret))
    await change(database, customer, expires_at=datetime.now(UTC) + timedelta(milliseconds=200))
    waits = [seconds_until(keys, customer.secret, let_in=False) for keys in replicas]
    assert max(await asyncio.gather(*waits)) < 2
    await change(database, customer, expires_at=NEXT_YEAR)
    waits = [seconds_until(keys, customer.secret, let_in=True) for keys in replicas]
    assert max(await asyncio.gather(*waits)) < 2


async def test_what_is_not_named_stays_and_none_lifts(database: Database, customer: Customer) -> None:
    issued = await issue_key(
        database,
        PEPPER,
        "ana",
        "acme",
        name="old",
        scopes=[Scope.FILES],
        models=["tiny"],
        expires_at=NEXT_YEAR,
    )
    renamed = await change_key(database, "ana", issued.key.id, KeyTerms(name=" new "))
    assert (renamed.name, renamed.scopes, renamed.models) == ("new", (Scope.FILES,), ("tiny",))
    assert renamed.expires_at == NEXT_YEAR
    lifted = await change_key(database, "ana", issued.key.id, KeyTerms(models=None, expires_at=None))
    assert (lifted.name, lifted.scopes, lifted.models, lifted.expires_at) == (
        "new",
        (Scope.FILES,),
        None,
        None,
    )
    assert lifted == await get_key(database, issued.key.id)


async def test_a_change_keeps_both_secrets_of_a_rotation(
    database: Database, customer: Customer, keys: KeyService
) -> None:
    new = (await rotate_key(database, PEPPER, "ana", customer.caller.key)).secret
    await change(database, customer, name="other")
    assert [await is_let_in(keys, secret) for secret in (customer.secret, new)] == [True, True]


async def test_the_trail_tells_what_a_key_was_and_is(database: Database, customer: Customer) -> None:
    await change(database, customer, models=["b", "a", "a"], scopes=[Scope.FILES, Scope.INFERENCE])
    event = await newest_event(database)
    assert (event.actor, event.action, event.subject) == ("ana", "key.change", customer.caller.key)
    assert event.before is not None
    assert event.after is not None
    assert (event.before["models"], event.after["models"]) == (None, "a b")
    assert event.after["scopes"] == "inference files"


async def test_terms_that_a_key_has_leave_no_trail(database: Database, customer: Customer) -> None:
    await change(database, customer, models=["b", "a"], scopes=[Scope.FILES, Scope.BATCH])
    before = await newest_event(database)
    await change(database, customer, models=["a", "b"], scopes=[Scope.BATCH, Scope.FILES], name="first")
    assert await newest_event(database) == before


@pytest.mark.parametrize(
    ("terms", "line"),
    [
        ({"name": ""}, "A name must be"),
        ({"scopes": []}, "needs a scope"),
        ({"models": []}, "must name one"),
        ({"models": ["two\nlines"]}, "A name must be"),
        ({"expires_at": datetime(2001, 1, 1, tzinfo=UTC)}, "in the future"),
    ],
)
async def test_terms_that_cannot_be_change_nothing(
    database: Database, customer: Customer, terms: dict[str, object], line: str
) -> None:
    before = await get_key(database, customer.caller.key)
    with pytest.raises(BadValue, match=line):
        await change(database, customer, **{"name": "new", **terms})
    assert await get_key(database, customer.caller.key) == before


async def test_a_key_that_is_over_or_unknown_is_not_changed(database: Database, customer: Customer) -> None:
    with pytest.raises(NoSuchThing):
        await change_key(database, "ana", KeyId("nothing"), KeyTerms(name="new"))
    await revoke_key(database, "ana", customer.caller.key)
    with pytest.raises(BadValue, match="revoked already"):
        await change(database, customer, expires_at=None)


async def test_two_changes_at_once_are_both_made(
    database: Database, database_url: str, customer: Customer
) -> None:
    await asyncio.gather(
        change(database, customer, name="other"), change(database, customer, models=["tiny"])
    )
    key = await get_key(database, customer.caller.key)
    assert (key.name, key.models) == ("other", ("tiny",))
    changes = rows(
        database_url, "SELECT before, after FROM audit_event WHERE action = 'key.change' ORDER BY id"
    )
    assert changes[0][1] == changes[1][0], "one after the other"


# --- `sluice keys set` -------------------------------------------------------------------------------------


async def test_the_command_changes_what_it_names_and_lifts(
    database: Database, database_url: str, customer: Customer
) -> None:
    sluice, key = Command(database_url), customer.caller.key
    narrowed = await sluice(
        "keys", "set", key, "--name", "docs", "--scope", "files", "--model", "tiny", "--expires-in-days", "9"
    )
    assert narrowed.status == 0, narrowed.errors
    assert "Key docs of acme: files with tiny; expires 20" in narrowed.output
    lifted = await sluice("keys", "set", key, "--all-scopes", "--all-models", "--no-expiry")
    assert "Key docs of acme: everything; expires never." in lifted.output


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "say what of it changes"),
        (["--model", "tiny", "--all-models"], "not both"),
        (["--scope", "files", "--all-scopes"], "not both"),
        (["--expires-in-days", "9", "--no-expiry"], "not both"),
        (["--scope", "everything"], "everything"),
    ],
)
async def test_a_command_that_says_nothing_or_both_is_wrong_usage(
    database_url: str, options: list[str], line: str
) -> None:
    ended = await Command(database_url)("keys", "set", "abc", *options)
    assert ended.status == 2
    assert line in ended.errors
