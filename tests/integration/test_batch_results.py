"""Results of lines, and what moves with them: once, for whoever holds the lease, and for nobody else."""

import asyncio

import pytest

from gateway.batches import results
from gateway.batches.ids import BatchId
from gateway.batches.results import ItemResult
from gateway.db import Database
from gateway.metering import Metering
from gateway.quotas.limits import QuotaKind
from gateway.quotas.reservation import Demand, Reservation
from gateway.usage.outcome import Outcome
from tests.builders.batches import lease, make_batch
from tests.builders.store import Customer, make_customer, used
from tests.builders.store_rows import rows, until_value, value

pytestmark = pytest.mark.postgres

LINES = "SELECT line, state, attempt FROM batch_item ORDER BY line"
LEFT = "SELECT (available + outstanding)::int FROM quota_bucket"
LENT = "SELECT coalesce(sum(outstanding), 0)::int FROM quota_bucket"
COUNTS = "SELECT num_completed, num_failed, prompt_tokens::int FROM batch"


def result(batch: BatchId, line: int = 1, *, attempt: int = 1, is_error: bool = False) -> ItemResult:
    return ItemResult(
        batch=batch, line=line, attempt=attempt, is_error=is_error, body="{}", usage=used(10, 5)
    )


async def reserved(metering: Metering, customer: Customer, request_id: str = "item") -> Reservation:
    return await metering.reserve_item(
        request_id=request_id,
        caller=customer.caller,
        model="model",
        demand=Demand(prompt_tokens=10, output_cap=20, output_floor=20),
    )


async def test_only_the_lease_that_holds_is_recorded(database: Database, database_url: str) -> None:
    """Two attempts of one line in one message broke the exchange of their process for good."""
    batch = await make_batch(database, await make_customer(database))
    await lease(database, batch, [1], epoch=7, attempt=2)
    reported = [result(batch, attempt=1), result(batch, attempt=2, is_error=True)]
    async with database.system_transaction() as connection:
        assert await results.record(connection, reported, epoch=7) == {(batch, 1, 2)}
    assert rows(database_url, COUNTS) == [(0, 1, 10)]
    assert rows(database_url, LINES)[0] == (1, "done", 2)


@pytest.mark.parametrize(("epoch", "attempt"), [(7, 2), (8, 1)])
async def test_a_lost_lease_records_nothing(
    database: Database, database_url: str, epoch: int, attempt: int
) -> None:
    batch = await make_batch(database, await make_customer(database))
    await lease(database, batch, [1], epoch=epoch, attempt=attempt)
    async with database.system_transaction() as connection:
        assert await results.record(connection, [result(batch)], epoch=7) == set()
    assert rows(database_url, COUNTS) == [(0, 0, 0)]
    assert value(database_url, "SELECT count(*)::int FROM batch_result") == 0


async def test_a_result_its_charge_and_its_credit_move_together(
    database: Database, database_url: str, metering: Metering
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    batch = await make_batch(database, customer)
    await lease(database, batch, [1], epoch=metering.epoch)
    reservation = await reserved(metering, customer)
    metering.record_item(reservation, result(batch), Outcome.FINISHED, share_error=2.5)
    assert metering.unrecorded_items() == {(batch, 1, 1)}
    await until_value(database_url, "SELECT num_completed FROM batch", 1)
    assert value(database_url, "SELECT completion_tokens::int FROM usage_event") == 5
    assert value(database_url, LEFT) == 1_000 - 15
    assert value(database_url, "SELECT served FROM batch_share") == 2.5
    async with asyncio.timeout(10):  # the commit is seen before its answer has arrived
        while metering.unrecorded_items():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_a_lost_lease_used_is_charged_to_nobody(
    database: Database, database_url: str, metering: Metering
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    batch = await make_batch(database, customer)
    await lease(database, batch, [1], epoch=metering.epoch, attempt=2)
    reservation = await reserved(metering, customer)
    metering.record_item(reservation, result(batch, attempt=1), Outcome.FINISHED, share_error=2.5)
    await until_value(database_url, LENT, 0)
    assert value(database_url, LEFT) == 1_000
    assert value(database_url, "SELECT count(*)::int FROM usage_event") == 0
    assert value(database_url, "SELECT count(*)::int FROM batch_share") == 0
    assert rows(database_url, LINES)[0] == (1, "leased", 2)


async def test_an_item_that_is_given_up_holds_nothing(
    database: Database, database_url: str, metering: Metering
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    metering.give_up_item(await reserved(metering, customer))
    await until_value(database_url, LENT, 0)
    assert value(database_url, LEFT) == 1_000
    assert value(database_url, "SELECT count(*)::int FROM usage_event") == 0
