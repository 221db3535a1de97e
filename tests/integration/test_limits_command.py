"""`sluice limits`, as an operator types it."""

import json

import psycopg
import pytest

from gateway.db import Database
from gateway.errors import LimitReached
from gateway.metering import Metering
from gateway.usage.outcome import Outcome
from tests.builders.batches import ITEM_TOKENS, make_batch
from tests.builders.command_line import Command
from tests.builders.store import make_customer, reserve, used
from tests.builders.store_rows import rows, until_value

pytestmark = pytest.mark.postgres


@pytest.fixture
def sluice(database_url: str) -> Command:
    return Command(database_url)


async def test_a_keys_budget_binds_and_shows_what_is_used(
    database: Database, database_url: str, sluice: Command
) -> None:
    customer = await make_customer(database)
    await sluice("limits", "set", "tokens_per_day", "50", "--tenant", "acme", "--key", customer.caller.key)
    metering = Metering(database, "replica")
    await metering.start()
    metering.settle(await reserve(metering, customer.caller), used(10, 20), Outcome.FINISHED)
    with pytest.raises(LimitReached, match=f"API key {customer.caller.key} of organization acme"):
        await reserve(metering, customer.caller)
    await until_value(database_url, "SELECT count(*) FROM usage_event", 1)
    await metering.stop()
    (listed,) = json.loads((await sluice("limits", "list", "--tenant", "acme", "--json")).output)
    assert (listed["scope"], listed["kind"], listed["value"], listed["used"]) == (
        "key",
        "tokens_per_day",
        50,
        30,
    )
    assert "tokens_per_day" in (await sluice("limits", "list", "--tenant", "acme")).output


async def test_what_is_stored_and_enqueued_is_shown_beside_its_limit(
    database: Database, database_url: str, sluice: Command
) -> None:
    customer = await make_customer(database)
    await make_batch(database, customer, num_items=3)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            """INSERT INTO file (id, tenant_id, project_id, purpose, filename, num_bytes, sha256, blob)
               SELECT 'file-1', tenant_id, id, 'batch', 'in.jsonl', 70, '', 'blob' FROM project"""
        )
    for scope in ([], ["--project", "default"], ["--key", customer.caller.key]):
        for kind in ("batch_enqueued_tokens", "file_storage_bytes"):
            await sluice("limits", "set", kind, "1000", "--tenant", "acme", *scope)
    listed = json.loads((await sluice("limits", "list", "--tenant", "acme", "--json")).output)
    assert {(one["scope"], one["kind"]): one["used"] for one in listed} == {
        (scope, kind): used
        for scope in ("tenant", "project", "key")
        for kind, used in (("batch_enqueued_tokens", 3 * ITEM_TOKENS), ("file_storage_bytes", 70))
    }


async def test_a_limit_is_lifted_and_each_change_is_in_the_audit_trail(
    database: Database, database_url: str, sluice: Command
) -> None:
    await make_customer(database)
    for number in ("7", "unlimited"):
        terms = [
            "requests_per_minute",
            number,
            "--tenant",
            "acme",
            "--project",
            "default",
            "--class",
            "offline",
        ]
        await sluice("limits", "set", *terms)
    assert "is not limited" in (await sluice("limits", "list", "--tenant", "acme")).output
    changes = "SELECT before->'value', after->'value' FROM audit_event WHERE action = 'limit.set' ORDER BY id"
    assert rows(database_url, changes) == [(None, 7), (7, None)]


@pytest.mark.parametrize(
    ("terms", "line"),
    [
        (["--tenant", "nobody"], "There is no tenant 'nobody'."),
        (["--tenant", "acme", "--key", "x"], "acme has no key 'x'."),
        (["--tenant", "acme", "--project", "x"], "no project"),
        (["--tenant", "acme", "--project", "default", "--key", "x"], "not of both"),
    ],
)
async def test_what_does_not_exist_cannot_be_limited(
    database: Database, sluice: Command, terms: list[str], line: str
) -> None:
    await make_customer(database)
    refused = await sluice("limits", "set", "tokens_per_day", "5", *terms)
    assert refused.status == 1
    assert line in refused.errors
