"""How batches come to their end: leases of dead workers, closed windows, cancelled work, ended keys."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from gateway.batch_leases import DeadLeases
from gateway.batches.attempts import MOST_ATTEMPTS
from gateway.batches.status import BatchStatus, EndsAs, ItemState
from gateway.db import Database
from gateway.keys import queries as keys
from gateway.life import Life
from gateway.quotas import queries as quotas
from gateway.rhythm import Rhythm
from tests.builders.batch_sweep import result_lines, sweep_of
from tests.builders.batches import finish_lines, lease, make_batch, set_state
from tests.builders.store import Customer, make_customer
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres

ITEMS = "SELECT line, state, lease_epoch FROM batch_item ORDER BY batch_id, line"
STATES = "SELECT state FROM batch_item ORDER BY batch_id, line"
BATCH = "SELECT status, ends_as FROM batch"
NOT_BEFORE = "SELECT count(*) FROM batch_item WHERE not_before > now()"


@pytest.fixture
async def customer(database: Database) -> Customer:
    return await make_customer(database)


async def living(database: Database) -> int:
    """The number of a life that nobody ended, and that beat just now."""
    async with database.system_transaction() as connection:
        return await quotas.register_replica(connection, "worker")


async def ended(database: Database) -> int:
    """The number of a life that is over, and not yet closed."""
    epoch = await living(database)
    async with database.system_transaction() as connection:
        await quotas.end_life(connection, epoch=epoch)
    return epoch


async def silent_for(database: Database, epoch: int, seconds: int) -> None:
    async with database.system_transaction() as connection:
        await connection.execute(
            text("UPDATE replica SET heartbeat_at = now() - make_interval(secs => :s) WHERE epoch = :e"),
            {"s": seconds, "e": epoch},
        )


async def leases_end(database: Database) -> None:
    await DeadLeases(database).turn(Rhythm())


async def sweep(database: Database) -> None:
    await sweep_of(database).end_what_is_over(Rhythm())


# --- leases -------------------------------------------------------------------------------------------------


async def test_items_of_a_life_that_was_ended_go_back_and_a_living_ones_stay(
    database: Database, database_url: str, customer: Customer
) -> None:
    batch = await make_batch(database, customer, num_items=3)
    lives = await living(database)
    await lease(database, batch, [1], epoch=await ended(database))
    await lease(database, batch, [2], epoch=lives)
    await leases_end(database)
    assert rows(database_url, ITEMS) == [(1, "pending", None), (2, "leased", lives), (3, "pending", None)]


async def test_items_of_a_life_that_is_closed_and_forgotten_go_back(
    database: Database, database_url: str, customer: Customer
) -> None:
    epoch = await living(database)
    batch = await make_batch(database, customer, num_items=1)
    await lease(database, batch, [1], epoch=epoch)
    async with database.system_transaction() as connection:
        await quotas.forget_life(connection, epoch=epoch)
    await leases_end(database)
    assert rows(database_url, ITEMS) == [(1, "pending", None)]


async def test_a_leader_that_has_just_begun_takes_nobodys_silence_for_death(
    database: Database, database_url: str, customer: Customer
) -> None:
    """After an outage of the store no life has beaten for long."""
    epoch = await living(database)
    batch = await make_batch(database, customer, num_items=1)
    await lease(database, batch, [1], epoch=epoch)
    await silent_for(database, epoch, 3_600)
    await leases_end(database)
    assert rows(database_url, ITEMS) == [(1, "leased", epoch)]


async def test_items_of_a_worker_that_stands_still_for_long_go_back(
    database: Database, database_url: str, customer: Customer
) -> None:
    stopped, beats = await living(database), await living(database)
    batch = await make_batch(database, customer, num_items=2)
    await lease(database, batch, [1], epoch=stopped)
    await lease(database, batch, [2], epoch=beats)
    await silent_for(database, stopped, 60)
    await silent_for(database, beats, -60)  # it beats for as long as the test takes
    duty = DeadLeases(database, silent_seconds=0.2)
    await duty.turn(Rhythm())
    await asyncio.sleep(0.3)
    await duty.turn(Rhythm())
    assert rows(database_url, ITEMS) == [(1, "pending", None), (2, "leased", beats)]


async def test_items_that_go_back_a_second_time_wait_for_a_while(
    database: Database, database_url: str, customer: Customer
) -> None:
    epoch = await ended(database)
    batch = await make_batch(database, customer, num_items=2)
    await lease(database, batch, [1], epoch=epoch, attempt=1)
    await lease(database, batch, [2], epoch=epoch, attempt=7)
    await leases_end(database)
    assert rows(database_url, "SELECT line FROM batch_item WHERE not_before > now()") == [(2,)]


async def test_an_item_whose_worker_died_too_often_ends_with_an_error(
    database: Database, database_url: str, customer: Customer
) -> None:
    batch = await make_batch(database, customer, num_items=2)
    await lease(database, batch, [1, 2], epoch=await ended(database), attempt=MOST_ATTEMPTS)
    await set_state(database, batch, [2], ItemState.PENDING)
    await leases_end(database)
    (line,) = result_lines(database_url, is_error=True)
    assert (line["custom_id"], line["error"]) == ("line-1", None)
    assert line["response"]["status_code"] == 500
    assert line["response"]["body"]["error"]["code"] == "server_error"
    assert f"{MOST_ATTEMPTS} attempts" in line["response"]["body"]["error"]["message"]
    assert rows(database_url, "SELECT num_completed, num_failed FROM batch") == [(0, 1)]
    assert rows(database_url, STATES) == [("done",), ("pending",)]


async def test_all_items_of_a_dead_worker_go_back_however_many(
    database: Database, database_url: str, customer: Customer
) -> None:
    epoch = await ended(database)
    for _ in range(3):
        batch = await make_batch(database, customer, num_items=700)
        await lease(database, batch, range(1, 701), epoch=epoch)
    await leases_end(database)
    assert value(database_url, "SELECT count(*) FROM batch_item WHERE state = 'leased'") == 0


async def test_a_killed_process_gives_its_items_back(
    database: Database, database_url: str, customer: Customer
) -> None:
    """`Life` and the sweep of lives are the real ones: what they call over is over here."""
    life = Life(database, "worker")
    epoch = await life.begin()
    batch = await make_batch(database, customer, num_items=1)
    await lease(database, batch, [1], epoch=epoch)
    await leases_end(database)
    assert rows(database_url, ITEMS) == [(1, "leased", epoch)]
    await life.end(holds_nothing=False)
    await leases_end(database)
    assert rows(database_url, ITEMS) == [(1, "pending", None)]


# --- ends ---------------------------------------------------------------------------------------------------


async def test_a_batch_whose_window_closed_runs_nothing_more(
    database: Database, database_url: str, customer: Customer
) -> None:
    batch = await make_batch(database, customer, num_items=3, expires_in=timedelta(seconds=-1))
    await finish_lines(database, customer, batch, [1])
    await lease(database, batch, [2], epoch=await living(database))
    await sweep(database)
    assert rows(database_url, BATCH) == [("in_progress", "expired")]
    assert rows(database_url, STATES) == [("done",), ("leased",), ("unrun",)]


async def test_a_batch_whose_window_is_open_goes_on(
    database: Database, database_url: str, customer: Customer
) -> None:
    await make_batch(database, customer, num_items=1)
    await sweep(database)
    assert rows(database_url, BATCH) == [("in_progress", None)]
    assert rows(database_url, STATES) == [("pending",)]


async def test_a_batch_may_expire_before_it_is_validated(
    database: Database, database_url: str, customer: Customer
) -> None:
    await make_batch(
        database,
        customer,
        num_items=0,
        status=BatchStatus.VALIDATING,
        expires_in=timedelta(seconds=-1),
    )
    await sweep(database)
    assert rows(database_url, BATCH) == [("validating", "expired")]


async def test_what_waits_in_a_cancelled_batch_is_never_run(
    database: Database, database_url: str, customer: Customer
) -> None:
    await make_batch(database, customer, num_items=2, status=BatchStatus.CANCELLING)
    await sweep(database)
    assert rows(database_url, BATCH) == [("cancelling", "cancelled")]
    assert rows(database_url, STATES) == [("unrun",), ("unrun",)]


async def test_a_batch_that_is_cancelled_while_it_expires_or_is_finalized_ends_as_cancelled(
    database: Database, database_url: str, customer: Customer
) -> None:
    for ends_as in (EndsAs.EXPIRED, EndsAs.COMPLETED):
        await make_batch(database, customer, num_items=0, status=BatchStatus.CANCELLING, ends_as=ends_as)
    await sweep(database)
    assert rows(database_url, BATCH) == [("cancelling", "cancelled")] * 2


async def test_more_items_than_fit_into_one_transaction_are_left_unrun_in_one_turn(
    database: Database, database_url: str, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.batch_sweep.MOST_ITEMS", 7)
    for _ in range(3):
        await make_batch(database, customer, num_items=10, status=BatchStatus.CANCELLING)
    await sweep(database)
    assert value(database_url, "SELECT count(*) FROM batch_item WHERE state = 'unrun'") == 30


async def test_a_batch_with_all_its_results_is_finalized(
    database: Database, database_url: str, customer: Customer
) -> None:
    whole = await make_batch(database, customer, num_items=2)
    await finish_lines(database, customer, whole, [1])
    await finish_lines(database, customer, whole, [2], status=400)
    await sweep(database)
    assert rows(database_url, BATCH) == [("finalizing", "completed")]


async def test_a_batch_of_which_one_item_is_still_run_is_not_finalized(
    database: Database, database_url: str, customer: Customer
) -> None:
    batch = await make_batch(database, customer, num_items=2)
    await finish_lines(database, customer, batch, [1])
    await lease(database, batch, [2], epoch=await living(database))
    await sweep(database)
    assert rows(database_url, BATCH) == [("in_progress", None)]


async def test_batches_of_a_revoked_key_are_cancelled(
    database: Database, database_url: str, customer: Customer
) -> None:
    other = await make_customer(database, "other")
    await make_batch(database, customer, num_items=1)
    await make_batch(database, customer, num_items=0, status=BatchStatus.VALIDATING)
    await make_batch(database, other, num_items=1)
    async with database.system_transaction() as connection:
        await keys.revoke(connection, customer.caller.key)
    await sweep(database)
    found = rows(
        database_url,
        "SELECT t.name, b.status, b.ends_as, b.cancelling_at IS NOT NULL FROM batch b "
        "JOIN tenant t ON t.id = b.tenant_id ORDER BY t.name",
    )
    assert found == [
        ("acme", "cancelling", "cancelled", True),
        ("acme", "cancelling", "cancelled", True),
        ("other", "in_progress", None, False),
    ]


async def test_batches_of_an_expired_key_are_cancelled(
    database: Database, database_url: str, customer: Customer
) -> None:
    await make_batch(database, customer, num_items=1)
    async with database.system_transaction() as connection:
        await connection.execute(text("UPDATE api_key SET expires_at = now() - interval '1 second'"))
    await sweep(database)
    assert rows(database_url, BATCH) == [("cancelling", "cancelled")]


async def test_a_disabled_tenants_batch_waits(
    database: Database, database_url: str, customer: Customer
) -> None:
    await make_batch(database, customer, num_items=1)
    async with database.system_transaction() as connection:
        await connection.execute(text("UPDATE tenant SET disabled_at = now()"))
    await sweep(database)
    assert rows(database_url, BATCH) == [("in_progress", None)]
    assert rows(database_url, STATES) == [("pending",)]


# --- locks --------------------------------------------------------------------------------------------------


async def test_the_sweep_and_the_workers_records_never_deadlock(
    database: Database, database_url: str, customer: Customer
) -> None:
    """A worker locks its batches by id and then its items by line, again and again."""
    over = await ended(database)
    own = await living(database)
    batches = [await make_batch(database, customer, num_items=40) for _ in range(4)]
    for batch in batches:
        await lease(database, batch, range(1, 21), epoch=over)
        await lease(database, batch, range(21, 41), epoch=own)

    async def record() -> None:
        for _ in range(40):
            async with database.system_transaction() as connection:
                await connection.execute(text("SELECT id FROM batch ORDER BY id FOR UPDATE"))
                own_items = "SELECT line FROM batch_item WHERE lease_epoch = :own"
                await connection.execute(
                    text(f"{own_items} ORDER BY batch_id, line FOR UPDATE"), {"own": own}
                )
                await connection.execute(text("UPDATE batch SET num_completed = num_completed"))

    async def take_back() -> None:
        for _ in range(20):
            await leases_end(database)
            async with database.system_transaction() as connection:
                await connection.execute(
                    text("UPDATE batch_item SET state = 'leased', lease_epoch = :over WHERE line <= 20"),
                    {"over": over},
                )

    async def end_things() -> None:
        for _ in range(20):
            await sweep(database)
            await sweep_of(database).sample(Rhythm())

    await asyncio.gather(record(), record(), take_back(), end_things())


async def test_an_item_that_is_just_recorded_is_not_taken_back(
    database: Database, database_url: str, customer: Customer
) -> None:
    """Its lease was lost a moment too late."""
    epoch = await ended(database)
    batch = await make_batch(database, customer, num_items=2)
    await lease(database, batch, [1, 2], epoch=epoch)
    async with database.system_transaction() as recording:
        await recording.execute(
            text("UPDATE batch_item SET state = 'done', lease_epoch = NULL WHERE line = 1")
        )
        await leases_end(database)
    assert rows(database_url, ITEMS) == [(1, "done", None), (2, "pending", None)]
