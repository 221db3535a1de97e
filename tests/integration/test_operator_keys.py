"""Who lets operators' programs in, for how long, and what is written down of it."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from gateway.db import Database
from gateway.errors import InvalidApiKey, PermissionDenied, StoreUnavailable
from gateway.keys.bearer import OPERATOR_ENVIRONMENT
from gateway.keys.secret import make_key
from gateway.keys.service import KeyService
from gateway.operator_administration import issue_operator_key, list_operator_keys, revoke_operator_key
from gateway.operators.key_service import OperatorKeys
from gateway.operators.scopes import OperatorScope
from gateway.tenants.errors import AlreadyExists, BadValue, NoSuchThing
from tests.builders.store import PEPPER, make_customer
from tests.builders.store_rows import rows, value
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

SCOPES = {OperatorScope.TENANTS_READ, OperatorScope.KEYS_WRITE}


async def secret_of(database: Database, name: str = "robot", **options: datetime) -> str:
    issued = await issue_operator_key(database, PEPPER, "ana", name, scopes=SCOPES, **options)
    return f"Bearer {issued.secret}"


@pytest.fixture
def operator_keys(database: Database) -> OperatorKeys:
    return OperatorKeys(database, PEPPER)


async def test_an_operator_key_says_whose_it_is_and_what_it_may_do(
    database: Database, operator_keys: OperatorKeys
) -> None:
    caller = await operator_keys.authenticate(await secret_of(database))
    assert (caller.actor, caller.scopes) == ("operator key robot", SCOPES)
    caller.require(OperatorScope.TENANTS_READ)
    with pytest.raises(PermissionDenied, match=r"lacks the scope 'audit\.read'"):
        caller.require(OperatorScope.AUDIT_READ)


async def test_neither_kind_of_key_opens_the_others_door(
    database: Database, operator_keys: OperatorKeys, keys: KeyService, store_switch: StoreSwitch
) -> None:
    operators = await secret_of(database)
    tenants = f"Bearer {(await make_customer(database)).secret}"
    store_switch.off()  # nobody is asked
    with pytest.raises(InvalidApiKey, match="This is an operator key"):
        await keys.authenticate(operators)
    with pytest.raises(InvalidApiKey, match="An operator key is wanted"):
        await operator_keys.authenticate(tenants)
    store_switch.on()


@pytest.mark.parametrize("text", ["sk-op-x", "sk-op-" + "a" * 500, "sk-op-\0", "sk-op-' OR 1=1 --"])
async def test_what_cannot_be_a_key_is_refused_without_asking_the_store(
    operator_keys: OperatorKeys, store_switch: StoreSwitch, text: str
) -> None:
    store_switch.off()
    with pytest.raises(InvalidApiKey, match="Incorrect operator key"):
        await operator_keys.authenticate(f"Bearer {text}")
    store_switch.on()


async def test_a_store_that_is_away_is_never_the_keys_fault(
    database: Database, operator_keys: OperatorKeys, store_switch: StoreSwitch
) -> None:
    secret = await secret_of(database)
    store_switch.off()
    with pytest.raises(StoreUnavailable):
        await operator_keys.authenticate(secret)
    store_switch.on()
    assert (await operator_keys.authenticate(secret)).name == "robot"


async def test_a_key_nobody_issued_and_one_of_another_pepper_are_refused(
    database: Database, operator_keys: OperatorKeys
) -> None:
    forged = await issue_operator_key(database, b"another pepper", "ana", "forged", scopes=SCOPES)
    for secret in (make_key(OPERATOR_ENVIRONMENT).value, forged.secret):
        with pytest.raises(InvalidApiKey, match="Incorrect operator key"):
            await operator_keys.authenticate(f"Bearer {secret}")


async def test_a_revoked_key_is_refused_within_two_seconds(
    database: Database, operator_keys: OperatorKeys
) -> None:
    secret = await secret_of(database)
    await operator_keys.authenticate(secret)
    await revoke_operator_key(database, "ana", "robot")
    await asyncio.sleep(2)
    with pytest.raises(InvalidApiKey, match="has been revoked"):
        await operator_keys.authenticate(secret)


async def test_a_known_key_costs_no_sql_for_a_second(
    database: Database, operator_keys: OperatorKeys, store_switch: StoreSwitch
) -> None:
    secret = await secret_of(database)
    await operator_keys.authenticate(secret)
    store_switch.off()
    assert (await operator_keys.authenticate(secret)).name == "robot"
    store_switch.on()


async def test_an_expired_key_is_refused(database: Database, operator_keys: OperatorKeys) -> None:
    secret = await secret_of(database, expires_at=datetime.now(UTC) + timedelta(seconds=0.2))
    await asyncio.sleep(0.3)
    with pytest.raises(InvalidApiKey, match="has expired"):
        await operator_keys.authenticate(secret)


async def test_use_is_noted(database: Database, database_url: str, operator_keys: OperatorKeys) -> None:
    await operator_keys.authenticate(await secret_of(database))
    assert value(database_url, "SELECT last_used_at IS NOT NULL FROM operator_key") is True


async def test_a_name_is_given_once_and_for_ever(database: Database) -> None:
    await secret_of(database)
    await revoke_operator_key(database, "ana", "robot")
    with pytest.raises(AlreadyExists, match="or once did"):
        await secret_of(database)
    with pytest.raises(BadValue, match="revoked already"):
        await revoke_operator_key(database, "ana", "robot")
    with pytest.raises(NoSuchThing):
        await revoke_operator_key(database, "ana", "nobody")


async def test_a_key_without_a_scope_is_refused(database: Database) -> None:
    with pytest.raises(BadValue, match="needs a scope"):
        await issue_operator_key(database, PEPPER, "ana", "robot", scopes=())


async def test_every_change_is_in_the_trail_and_the_secret_is_nowhere(
    database: Database, database_url: str, operator_keys: OperatorKeys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issued = await issue_operator_key(database, PEPPER, "ana", "robot", scopes=SCOPES)
    await operator_keys.authenticate(f"Bearer {issued.secret}")
    with pytest.raises(InvalidApiKey) as wrong:
        await operator_keys.authenticate(f"Bearer {issued.secret[:-1]}!")
    await revoke_operator_key(database, "bo", issued.key.id)
    trail = rows(database_url, "SELECT actor, action, subject FROM audit_event ORDER BY id")
    assert trail == [
        ("ana", "operator_key.issue", issued.key.id),
        ("bo", "operator_key.revoke", issued.key.id),
    ]
    shown = [repr(issued), repr(await list_operator_keys(database)), repr(wrong.value), caplog.text]
    shown.append(str(value(database_url, "SELECT json_agg(a)::text FROM audit_event a")))
    shown.append(str(value(database_url, "SELECT json_agg(k)::text FROM operator_key k")))
    canary = issued.secret.rsplit("-", 1)[1][:43]
    assert all(canary not in text for text in shown)


async def test_the_command_makes_lists_and_revokes_keys(
    database_url: str, operator_keys: OperatorKeys
) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "deploy", "operators", "keys", *arguments]
        secrets = {"SLUICE_SECRETS__KEY_PEPPER": PEPPER.hex(), "SLUICE_DATABASE_URL": database_url}
        return subprocess.check_output(command, text=True, env=os.environ | secrets)

    secret = run("create", "robot", "--scope", "tenants.read", "--scope", "audit.read", "--quiet")
    caller = await operator_keys.authenticate(f"Bearer {secret.strip()}")
    assert caller.scopes == {OperatorScope.TENANTS_READ, OperatorScope.AUDIT_READ}
    (listed,) = json.loads(run("list", "--json"))
    assert (listed["name"], listed["revoked_at"]) == ("robot", None)
    assert secret.strip() not in str(listed)
    assert "revoked" in run("revoke", "robot")
    await asyncio.sleep(2)
    with pytest.raises(InvalidApiKey, match="has been revoked"):
        await operator_keys.authenticate(f"Bearer {secret.strip()}")
