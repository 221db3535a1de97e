"""Ordering batches, and what becomes of them once they are validated, in a real store."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import insert, select, text, update

from gateway import batch_intake
from gateway.batch_intake import Ticket, Validated
from gateway.batches import queries
from gateway.batches.batch import Batch
from gateway.batches.faults import Fault
from gateway.batches.items import Item, columns_of
from gateway.batches.status import BatchStatus
from gateway.batches.tables import batch as batches
from gateway.batches.tables import batch_share
from gateway.db import Database
from gateway.errors import InvalidRequest, LimitReached, NotFound
from gateway.key_administration import issue_key
from gateway.project_administration import create_project
from gateway.quotas.limits import QuotaKind, Scope
from tests.builders.batch_input import chat_line
from tests.builders.batch_orders import Orders, create, ticket_of, wanted
from tests.builders.batches import make_batch
from tests.builders.files import set_batch_status
from tests.builders.plans import rows_touched
from tests.builders.store import Customer, limit_tenant, make_customer
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres

ITEMS = [
    Item(line=1, custom_id="a", first_byte=0, num_bytes=10, prompt_tokens=20, prefix=-(2**63)),
    Item(line=3, custom_id="b\u00e9", first_byte=12, num_bytes=5, prompt_tokens=40, prefix=2**63 - 1),
]
SIXTY = Validated(model="tiny", num_items=2, num_tokens=60)
MULTIPLY = """
    INSERT INTO batch (id, tenant_id, project_id, key_id, endpoint, input_file_id, input_blob,
                       completion_window, created_at, expires_at)
    SELECT id || number, tenant_id, project_id, key_id, endpoint, input_file_id, input_blob,
           completion_window, created_at + make_interval(secs => number), expires_at
    FROM batch, generate_series(1, 1999) number
"""


@pytest.fixture
def orders(database: Database, tmp_path: Path) -> Orders:
    return Orders(database, tmp_path)


@pytest.fixture
async def customer(database: Database) -> Customer:
    return await make_customer(database)


async def take_in(database: Database, ticket: Ticket, validated: Validated = SIXTY) -> None:
    await batch_intake.take_in(database, ticket, validated, [columns_of(ITEMS)])


async def test_what_was_validated_is_in_the_store_and_may_be_run(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, b"")
    await take_in(database, await ticket_of(database, batch))
    found = await orders.now(customer, batch)
    assert (found.status, found.model, found.num_items, found.enqueued_tokens) == (
        "in_progress",
        "tiny",
        2,
        60,
    )
    assert found.in_progress_at is not None
    assert rows(
        database_url,
        """SELECT line, custom_id, first_byte, num_bytes, prompt_tokens, prefix, state
           FROM batch_item ORDER BY line""",
    ) == [
        (1, "a", 0, 10, 20, -(2**63), "pending"),
        (3, "bé", 12, 5, 40, 2**63 - 1, "pending"),
    ]


async def test_what_is_wrong_is_told_and_nothing_is_run(
    database: Database, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, b"")
    fault = Fault("invalid_json_line", 3, "No.", "body")
    await batch_intake.refuse(database, await ticket_of(database, batch), [fault])
    found = await orders.now(customer, batch)
    assert (found.status, found.faults, found.failed_at is not None) == ("failed", (fault,), True)


async def test_a_batch_that_was_cancelled_meanwhile_stays_so(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, b"")
    ticket = await ticket_of(database, batch)
    await batch_intake.cancel(database, customer.caller, batch.id)
    assert not await batch_intake.is_awaited(database, ticket)
    await take_in(database, ticket)
    await batch_intake.refuse(database, ticket, [])
    assert (await orders.now(customer, batch)).status == "cancelling"
    assert value(database_url, "SELECT count(*) FROM batch_item") == 0


async def test_a_validator_whose_batch_was_given_to_another_changes_nothing(
    database: Database, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, b"")
    late = await ticket_of(database, batch, epoch=1)
    await ticket_of(
        database, batch, epoch=2
    )  # the first one's life is over: the store knows none of that number
    await take_in(database, late)
    assert (await orders.now(customer, batch)).status == "validating"


async def test_a_batch_is_validated_by_one_living_process(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, b"")
    (epoch,) = rows(database_url, "INSERT INTO replica (name) VALUES ('alive') RETURNING epoch")[0]
    assert isinstance(epoch, int)
    await ticket_of(database, batch, epoch=epoch)
    assert await batch_intake.claim(database, epoch=epoch + 1) is None
    rows(database_url, "UPDATE replica SET fenced_at = now() RETURNING epoch")
    await ticket_of(database, batch, epoch=epoch + 1)


async def test_a_batch_whose_window_closed_is_left_to_the_sweep(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    await orders.order(customer, b"")
    rows(database_url, "UPDATE batch SET expires_at = now() RETURNING id")
    assert await batch_intake.claim(database, epoch=1) is None


async def test_each_tenants_oldest_batch_is_next_and_nobody_waits_behind_all_of_anothers(
    database: Database, orders: Orders, customer: Customer
) -> None:
    oldest, *_ = [await orders.order(customer, b"") for _ in range(5)]
    other = await make_customer(database, "other")
    (theirs,) = [await orders.order(other, b"")]
    claimed = [await batch_intake.claim(database, epoch=epoch) for epoch in range(50)]
    assert {one.ticket.batch for one in claimed if one is not None} == {oldest.id, theirs.id}


async def test_a_claim_among_thousands_of_new_batches_looks_at_each_a_few_times(
    database: Database, database_url: str, customer: Customer
) -> None:
    """It compared each with each until statistics were gathered again, and outlasted a statement's time."""
    first = await make_batch(database, customer, num_items=0, status=BatchStatus.VALIDATING)
    with psycopg.connect(database_url) as owner:
        owner.execute("ANALYZE batch")
    async with database.system_transaction() as connection:
        await connection.execute(text(MULTIPLY))
        async with rows_touched(connection) as touched:
            claimed = await queries.claim_for_validation(connection, epoch=1)
    assert claimed is not None
    assert claimed.id == first
    assert sum(touched) < 10 * 2_000


@pytest.mark.parametrize("scope", Scope)
async def test_two_batches_at_once_never_exceed_a_limit_together(
    database: Database, orders: Orders, customer: Customer, scope: Scope
) -> None:
    caller = customer.caller
    whose = {Scope.TENANT: caller.tenant, Scope.PROJECT: caller.project, Scope.KEY: caller.key}[scope]
    await limit_tenant(
        database, caller.tenant, QuotaKind.BATCH_ENQUEUED_TOKENS, 100, scope=scope, scope_id=whose
    )
    tickets = [await ordered(database, orders, customer, epoch) for epoch in (1, 2)]
    await asyncio.gather(*(take_in(database, ticket) for _, ticket in tickets))
    found = [await orders.now(customer, batch) for batch, _ in tickets]
    assert sorted(batch.status for batch in found) == ["failed", "in_progress"]
    (fault,) = [fault for batch in found for fault in batch.faults]
    assert fault.code == "token_limit_exceeded"
    assert "Limit 100, Enqueued 60, Requested 60" in fault.message


async def ordered(database: Database, orders: Orders, customer: Customer, epoch: int) -> tuple[Batch, Ticket]:
    """A batch, and the ticket of a living process's validator."""
    batch = await orders.order(customer, b"")
    async with database.system_transaction() as connection:
        await connection.execute(
            update(batches).where(batches.c.id == batch.id).values(validator_epoch=epoch)
        )
    caller = customer.caller
    return batch, Ticket(
        batch=batch.id,
        tenant=caller.tenant,
        tenant_name=caller.tenant_name,
        project=caller.project,
        key=caller.key,
        epoch=epoch,
    )


async def test_what_has_ended_is_enqueued_no_more(
    database: Database, orders: Orders, customer: Customer
) -> None:
    await limit_tenant(database, customer.tenant.id, QuotaKind.BATCH_ENQUEUED_TOKENS, 100)
    await make_batch(database, customer, num_items=10, status=BatchStatus.COMPLETED)
    await make_batch(database, customer, num_items=4)
    batch = await orders.order(customer, b"")
    await take_in(database, await ticket_of(database, batch))
    assert (await orders.now(customer, batch)).status == "in_progress"


async def test_another_projects_limit_and_another_tenants_batches_do_not_count(
    database: Database, orders: Orders, customer: Customer
) -> None:
    tenant = customer.tenant.id
    project = await create_project(database, "test", tenant, "other")
    await limit_tenant(
        database, tenant, QuotaKind.BATCH_ENQUEUED_TOKENS, 1, scope=Scope.PROJECT, scope_id=project.id
    )
    await limit_tenant(database, tenant, QuotaKind.BATCH_ENQUEUED_TOKENS, 60)
    await make_batch(database, await make_customer(database, "other"), num_items=100)
    batch = await orders.order(customer, b"")
    await take_in(database, await ticket_of(database, batch))
    assert (await orders.now(customer, batch)).status == "in_progress"


async def test_who_had_nothing_to_run_begins_where_the_busy_ones_are(
    database: Database, orders: Orders, customer: Customer
) -> None:
    for name, served in (("busy", 70.0), ("busier", 90.0), ("idle", 3.0)):
        other = await make_customer(database, name)
        if name != "idle":
            await make_batch(database, other)
        await set_served(database, other, served)
    await take_in(database, await ticket_of(database, await orders.order(customer, b"")))
    assert await served_of(database, customer) == 70


async def test_who_has_something_to_run_keeps_its_place(
    database: Database, orders: Orders, customer: Customer
) -> None:
    busy = await make_customer(database, "busy")
    await make_batch(database, busy)
    await set_served(database, busy, 80)
    await make_batch(database, customer)
    await set_served(database, customer, 75)
    await take_in(database, await ticket_of(database, await orders.order(customer, b"")))
    assert await served_of(database, customer) == 75


async def set_served(database: Database, customer: Customer, served: float) -> None:
    async with database.system_transaction() as connection:
        await connection.execute(insert(batch_share).values(tenant_id=customer.tenant.id, served=served))


async def served_of(database: Database, customer: Customer) -> float:
    async with database.system_transaction() as connection:
        served = await connection.scalar(
            select(batch_share.c.served).where(batch_share.c.tenant_id == customer.tenant.id)
        )
    assert served is not None
    return served


# --- orders ----------------------------------------------------------------------------------------------


async def test_the_same_order_again_is_the_same_batch_even_at_once(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    order = wanted(await orders.store(customer, chat_line()), idempotency_key="once", metadata={"a": "b"})
    made = await asyncio.gather(*(create(database, customer.caller, order) for _ in range(5)))
    assert len({batch.id for batch in made}) == 1
    assert value(database_url, "SELECT count(*) FROM batch") == 1


async def test_an_idempotency_key_for_another_order_is_refused(
    database: Database, orders: Orders, customer: Customer
) -> None:
    stored = await orders.store(customer, chat_line())
    await create(database, customer.caller, wanted(stored, idempotency_key="once"))
    other = wanted(stored, idempotency_key="once", completion_window="1h")
    with pytest.raises(InvalidRequest, match="used for another batch"):
        await create(database, customer.caller, other)


async def test_an_idempotency_key_is_another_projects_own_and_is_forgotten_after_a_day(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    stored = await orders.store(customer, chat_line())
    order = wanted(stored, idempotency_key="once")
    first = await create(database, customer.caller, order)
    other = await make_customer(database, "other")
    theirs = wanted(await orders.store(other, b""), idempotency_key="once")
    await create(database, other.caller, theirs)
    rows(database_url, "UPDATE batch SET created_at = now() - interval '25 hours' RETURNING id")
    assert (await create(database, customer.caller, order)).id != first.id


async def test_a_window_is_as_long_as_it_says(database: Database, orders: Orders, customer: Customer) -> None:
    batch = await orders.order(customer, b"", completion_window="90m")
    assert batch.expires_at - batch.created_at == timedelta(minutes=90)
    assert batch.completion_window == "90m"


async def test_another_keys_batches_of_the_same_project_are_found_and_another_projects_are_not(
    database: Database, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, b"")
    project = await create_project(database, "test", customer.tenant.id, "other")
    issued = await issue_key(
        database, b"pepper", "test", customer.tenant.id, name="second", project=project.id
    )
    elsewhere = replace(customer.caller, project=project.id, key=issued.key.id)
    colleague = replace(customer.caller, key=issued.key.id)
    assert (await batch_intake.find(database, colleague, batch.id)).id == batch.id
    with pytest.raises(NotFound):
        await batch_intake.find(database, elsewhere, batch.id)
    with pytest.raises(NotFound):
        await batch_intake.cancel(database, elsewhere, batch.id)
    assert await batch_intake.page(database, elsewhere, limit=10, after=None) == []
    stored = await orders.store(customer, b"")
    with pytest.raises(NotFound, match="No such File"):
        await create(database, elsewhere, wanted(stored))


async def test_orders_at_once_leave_no_more_batches_open_than_a_tenant_may_have(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    stored = await orders.store(customer, b"")
    keyed = [wanted(stored, idempotency_key=str(number)) for number in range(5)]
    made = await asyncio.gather(
        *(create(database, customer.caller, order, most_open=2) for order in keyed), return_exceptions=True
    )
    refused = [one for one in made if isinstance(one, LimitReached)]
    assert [str(one) for one in refused] == [
        "Open batches limit reached for organization acme: Limit 2. "
        "Wait until some have ended, or put more lines into each."
    ] * 3
    assert value(database_url, "SELECT count(*) FROM batch") == 2
    again = [order for order, one in zip(keyed, made, strict=True) if isinstance(one, Batch)]
    for order in again:  # which makes none
        await create(database, customer.caller, order, most_open=2)
    stranger = await make_customer(database, "stranger")
    theirs = await orders.store(stranger, b"")
    await create(database, stranger.caller, wanted(theirs), most_open=2)
    await set_batch_status(database, BatchStatus.COMPLETED)
    await create(database, customer.caller, wanted(stored), most_open=2)
