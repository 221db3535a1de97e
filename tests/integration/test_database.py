"""Every way in which the store can be away looks the same to those who ask it."""

import asyncio
import socket

import pytest
from sqlalchemy import text

from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.key_administration import revoke_key
from gateway.metering import Metering
from gateway.usage.outcome import Outcome
from tests.builders.statements import counted_statements
from tests.builders.store import NOTHING_USED, make_customer, reserve
from tests.builders.store_rows import rows, value
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres


async def ask(database: Database, question: str = "SELECT 1") -> object:
    async with database.system_transaction() as connection:
        return await connection.scalar(text(question))


async def test_nobody_listening_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        database = Database.connect(
            f"postgresql://sluice@127.0.0.1:{unused.getsockname()[1]}/postgres", application_name="test"
        )
        with pytest.raises(StoreUnavailable):
            await ask(database)
        await database.close()


async def test_a_statement_cut_short_is_unavailable(database: Database, store_switch: StoreSwitch) -> None:
    asking = asyncio.create_task(ask(database, "SELECT pg_sleep(4)"))
    await ask(database)  # it has reached the store by then, or will find it closed
    await asyncio.to_thread(store_switch.off)
    with pytest.raises(StoreUnavailable):
        await asking
    store_switch.on()


async def test_a_store_that_comes_back_is_used_at_once(database: Database, store_switch: StoreSwitch) -> None:
    await asyncio.gather(*(ask(database) for _ in range(10)))  # the pool is full of connections
    store_switch.off()
    store_switch.on()
    assert await asyncio.gather(*(ask(database) for _ in range(10))) == [1] * 10


async def test_more_askers_than_connections_wait_their_turn(database_url: str) -> None:
    database = Database.connect(database_url, application_name="test", pool_size=1)
    assert await asyncio.gather(*(ask(database) for _ in range(20))) == [1] * 20
    await database.close()


async def test_an_error_inside_takes_the_transaction_back(database: Database, database_url: str) -> None:
    async def insert_and_fail() -> None:
        async with database.system_transaction() as connection:
            await connection.execute(text("INSERT INTO replica (name) VALUES ('half')"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await insert_and_fail()
    assert value(database_url, "SELECT count(*) FROM replica") == 0


async def test_a_mistake_in_a_statement_is_not_called_unavailable(database: Database) -> None:
    with pytest.raises(Exception, match="no_such_table") as caught:
        await ask(database, "SELECT * FROM no_such_table")
    assert not isinstance(caught.value, StoreUnavailable)


async def test_the_audit_trail_cannot_be_changed_while_serving(database: Database) -> None:
    with pytest.raises(Exception, match="permission denied"):
        await ask(database, "DELETE FROM audit_event")


async def test_nothing_notifies_as_that_takes_one_lock_for_all_commits(
    database: Database, database_url: str
) -> None:
    """H13: commits that queue behind each other. Whoever wants to know of changes polls."""
    with counted_statements() as statements:
        customer = await make_customer(database, tokens_per_minute=1_000)
        metering = Metering(database, "replica")
        await metering.start()
        metering.settle(await reserve(metering, customer.caller), NOTHING_USED, Outcome.FINISHED)
        await revoke_key(database, "test", customer.caller.key)
        await metering.stop()
    assert len(statements) > 10
    assert not [text for text in statements.texts if "notify" in text.lower()]
    of_ours = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    assert rows(database_url, of_ours + " AND prosrc ILIKE '%notify%'") == []
