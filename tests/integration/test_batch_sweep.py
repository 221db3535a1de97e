"""The sweep as it runs: batches reach their ends by themselves, whoever leads; what is old goes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from gateway.batch_finishing import BatchFinishing
from gateway.batches.status import BatchStatus
from gateway.db import Database
from gateway.files.local_store import LocalFileStore
from gateway.metrics import GatewayMetrics
from gateway.quotas import queries as quotas
from gateway.rhythm import Rhythm
from tests.builders.batch_sweep import sweep_of
from tests.builders.batches import finish_lines, lease, make_batch
from tests.builders.store import Customer, make_customer
from tests.builders.store_rows import rows, until_rows, value
from tests.builders.stored_gateway import starting_gateway

pytestmark = pytest.mark.postgres

LEADER = """
    SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND application_name IN ('first', 'second')
"""
BATCHES = "SELECT status, num_completed, num_failed FROM batch ORDER BY created_at"


@pytest.fixture
async def customer(database: Database) -> Customer:
    return await make_customer(database)


@pytest.fixture
def store(tmp_path: Path) -> LocalFileStore:
    return LocalFileStore(tmp_path / "files")


@asynccontextmanager
async def sweeping(url: str, store: LocalFileStore, name: str) -> AsyncIterator[None]:
    """A gateway process that sweeps, or waits to."""
    database = Database.connect(url, application_name=name, pool_size=3)
    sweep = sweep_of(database, store)
    await sweep.start()
    try:
        yield
    finally:
        await sweep.stop()
        await database.close()


async def test_batches_reach_their_ends_by_themselves(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    whole = await make_batch(database, customer, num_items=2)
    await finish_lines(database, customer, whole, [1, 2])
    cancelled = await make_batch(database, customer, num_items=3, status=BatchStatus.CANCELLING)
    await finish_lines(database, customer, cancelled, [1])
    async with database.system_transaction() as connection:
        dead = await quotas.register_replica(connection, "worker")
        await quotas.end_life(connection, epoch=dead)
    await lease(database, cancelled, [2], epoch=dead)
    async with sweeping(database_url, store, "first"):
        await until_rows(database_url, BATCHES, [("completed", 2, 0), ("cancelled", 1, 2)])


async def test_a_second_process_goes_on_when_the_leader_is_gone(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    async with AsyncExitStack() as first:
        await first.enter_async_context(sweeping(database_url, store, "first"))
        await until_rows(database_url, LEADER, [("first",)])
        async with sweeping(database_url, store, "second"):
            await first.aclose()
            batch = await make_batch(database, customer, num_items=1)
            await finish_lines(database, customer, batch, [1])
            await until_rows(database_url, BATCHES, [("completed", 1, 0)])
            assert rows(database_url, LEADER) == [("second",)]


class NoEngine:
    """Where nobody listens."""

    url = "ws://127.0.0.1:9"


async def test_a_gateway_sweeps_while_no_engine_is_there(
    database: Database, database_url: str, customer: Customer
) -> None:
    await make_batch(database, customer, num_items=0, status=BatchStatus.CANCELLING)
    async with starting_gateway(database_url, NoEngine()):
        await until_rows(database_url, BATCHES, [("cancelled", 0, 0)])


async def test_progress_is_sampled_and_open_batches_are_counted(
    database: Database, database_url: str, customer: Customer
) -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    sweep = sweep_of(database, metrics=metrics)
    batch = await make_batch(database, customer, num_items=100)
    await make_batch(database, customer, num_items=0, status=BatchStatus.VALIDATING)
    await sweep.sample(Rhythm())
    assert rows(database_url, "SELECT items_per_second, sampled_num FROM batch WHERE num_items > 0") == [
        (None, 0)
    ]
    await finish_lines(database, customer, batch, range(1, 51))
    async with database.system_transaction() as connection:
        await connection.execute(text("UPDATE batch SET sampled_at = now() - interval '5 seconds'"))
    await sweep.sample(Rhythm())
    ((rate, num),) = rows(database_url, "SELECT items_per_second, sampled_num FROM batch WHERE num_items > 0")
    assert rate == pytest.approx(10.0, rel=0.1)
    assert num == 50
    assert metrics.batches_open.labels(BatchStatus.IN_PROGRESS)._value.get() == 1
    assert metrics.batches_open.labels(BatchStatus.VALIDATING)._value.get() == 1
    assert metrics.batches_open.labels(BatchStatus.CANCELLING)._value.get() == 0
    assert metrics.oldest_batch_age._value.get() > 0


async def test_a_batch_is_sampled_again_only_after_a_while(
    database: Database, database_url: str, customer: Customer
) -> None:
    batch = await make_batch(database, customer, num_items=2)
    await sweep_of(database).sample(Rhythm())
    await finish_lines(database, customer, batch, [1])
    await sweep_of(database).sample(Rhythm())
    assert value(database_url, "SELECT sampled_num FROM batch") == 0


async def test_items_of_ended_batches_are_counted_by_what_became_of_them(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    database_two = Database.connect(database_url, application_name="two", pool_size=3)
    batch = await make_batch(database, customer, num_items=6, status=BatchStatus.CANCELLING)
    await finish_lines(database, customer, batch, [1, 2, 3])
    await finish_lines(database, customer, batch, [4], status=400)
    sweep = sweep_of(database_two, store, metrics)
    await sweep.start()
    await until_rows(database_url, BATCHES, [("cancelled", 3, 3)])
    await sweep.stop()
    await database_two.close()
    counted = {
        outcome: metrics.batch_items.labels(outcome)._value.get()
        for outcome in ("completed", "failed", "cancelled")
    }
    assert counted == {"completed": 3, "failed": 1, "cancelled": 2}


async def test_batches_go_so_many_days_after_their_end_and_open_ones_stay(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    for _ in range(2):
        batch = await make_batch(database, customer, num_items=1)
        await finish_lines(database, customer, batch, [1])
    running = await make_batch(database, customer, num_items=1)
    sweep = sweep_of(database, store)
    await sweep.end_what_is_over(Rhythm())
    await BatchFinishing(database, store).turn(Rhythm())
    async with database.system_transaction() as connection:
        await connection.execute(
            text(
                "UPDATE batch SET created_at = now() - interval '40 days', completed_at = completed_at - "
                "CASE WHEN id = :last THEN interval '31 days' ELSE interval '29 days' END"
            ),
            {"last": batch},
        )
    await sweep.forget_old(Rhythm())
    kept = {row[0] for row in rows(database_url, "SELECT id FROM batch")}
    assert batch not in kept
    assert running in kept
    assert len(kept) == 2


async def test_files_go_when_their_time_is_over(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    batch = await make_batch(database, customer, num_items=1)
    await finish_lines(database, customer, batch, [1])
    sweep = sweep_of(database, store)
    await sweep.end_what_is_over(Rhythm())
    await BatchFinishing(database, store).turn(Rhythm())
    async with database.system_transaction() as connection:
        await connection.execute(text("UPDATE file SET expires_at = now() - interval '1 second'"))
    await sweep.forget_old(Rhythm())
    assert value(database_url, "SELECT count(*) FROM file") == 0
    assert list(store.blobs()) == []
