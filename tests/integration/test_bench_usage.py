"""`sluice bench --from-usage`: our own ledger, drawn again."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.bench.ledger import past_requests
from deploy.failure import Failure
from engine.protocol import RequestClass, Usage
from gateway.db import Database
from gateway.usage import queries
from gateway.usage.outcome import Outcome
from gateway.usage.queries import UsageEvent
from tests.builders.bench_command import bench_report, obedient
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.builders.store import Customer, make_customer

pytestmark = pytest.mark.postgres

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


async def spend(
    database: Database, customer: Customer, number: int, *, outcome: Outcome = Outcome.FINISHED
) -> None:
    """A request of 10 + `number` prompt tokens, `number` seconds after noon."""
    event = UsageEvent(
        request_id=f"request-{number}",
        tenant=customer.caller.tenant,
        project=customer.caller.project,
        key=customer.caller.key,
        model="tiny",
        request_class=RequestClass.OFFLINE if number == 2 else RequestClass.INTERACTIVE,
        usage=Usage(10 + number, 4, 3),
        outcome=outcome,
        admitted_at=NOON + timedelta(seconds=number),
    )
    async with database.system_transaction() as connection:
        await queries.record(connection, [event])


async def test_past_requests_come_in_order_with_all_that_shapes_load(database: Database) -> None:
    customer = await make_customer(database)
    await spend(database, customer, 2)
    await spend(database, customer, 1, outcome=Outcome.CANCELLED)
    await spend(database, customer, 3, outcome=Outcome.FAILED)
    first, second = await past_requests(database)
    assert (first.num_prompt_tokens, first.num_cached_tokens, first.num_output_tokens) == (11, 4, 3)
    assert second.at_seconds - first.at_seconds == 1
    assert first.tenant_name == customer.caller.tenant_name
    assert (first.is_cancelled, second.is_cancelled) == (True, False)
    assert (first.is_offline, second.is_offline) == (False, True)


async def test_an_empty_ledger_says_what_to_do(database: Database) -> None:
    with pytest.raises(Failure, match="use --scenario"):
        await past_requests(database)


async def test_the_command_draws_from_the_ledger(
    database: Database, database_url: str, gateway: GatewayUnderTest, tmp_path: Path
) -> None:
    gateway.engine.script = obedient
    customer = await make_customer(database)
    for number in range(1, 5):
        await spend(database, customer, number)
    report = await bench_report(
        gateway.url, tmp_path, "--from-usage", "--rate", "20", "--duration", "0.5",
        "--database-url", database_url,
    )  # fmt: skip
    figures = report["runs"][0]["figures"]
    assert figures["num_complete"] == len(gateway.engine.received) > 0
    assert [row["name"] for row in figures["tenants"]] == [customer.caller.tenant_name]
    assert {len(request.prompt_ids) for request in gateway.engine.received} <= {11, 12, 13, 14}
    assert len({request.prompt_ids[:4] for request in gateway.engine.received}) == 1, (
        "cached then, shared now"
    )
