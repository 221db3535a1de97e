"""`sluice limits`, as an operator types it."""

import json

import pytest

from gateway.db import Database
from gateway.errors import LimitReached
from gateway.metering import Metering
from gateway.usage.outcome import Outcome
from tests.builders.command_line import Command
from tests.builders.store import make_customer, reserve, used
from tests.builders.store_rows import until_value, value

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
    changes = "SELECT jsonb_agg(jsonb_build_array(before->'value', after->'value') ORDER BY id) FROM audit_event WHERE action = 'limit.set'"
    assert value(database_url, changes) == [[None, 7], [7, None]]


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
    assert refused.exit_code == 1
    assert line in refused.output
