"""One of many processes leads; another takes over when it is killed, stopped, or cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from sqlalchemy import Engine, event

from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.leadership import Duty, Leadership
from gateway.rhythm import Rhythm
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres


class Process:
    """A process that may lead, and counts its turns."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.num_turns = 0
        self.terms: list[Rhythm] = []
        self.error: Exception | None = None
        self.leadership = Leadership(database, 7, self.duties, try_seconds=0.05)

    def duties(self) -> list[Duty]:
        return [Duty(trouble="the test's duty fails", every_seconds=0.01, turn=self.turn)]

    async def turn(self, term: Rhythm) -> None:
        if term not in self.terms:
            self.terms.append(term)
        self.num_turns += 1
        if self.error is not None:
            raise self.error

    @property
    def leads(self) -> bool:
        return bool(self.terms) and not self.terms[-1].is_over

    async def until_leads(self) -> None:
        async with asyncio.timeout(10):
            while not self.leads:  # noqa: ASYNC110 - what another process would see
                await asyncio.sleep(0.01)


@asynccontextmanager
async def processes(url: str, num: int) -> AsyncIterator[list[Process]]:
    running = [
        Process(Database.connect(url, application_name=f"leader {number}", pool_size=2))
        for number in range(num)
    ]
    for process in running:
        await process.leadership.start()
    try:
        yield running
    finally:
        for process in running:
            await process.leadership.stop()
            await process.database.close()


async def the_leader(running: list[Process]) -> Process:
    async with asyncio.timeout(10):
        while not any(process.leads for process in running):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    (leader,) = [process for process in running if process.leads]
    return leader


def kill_connections(url: str, application_name: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            (application_name,),
        )


async def test_one_of_many_leads(database_url: str) -> None:
    async with processes(database_url, 4) as running:
        leader = await the_leader(running)
        await asyncio.sleep(0.3)
        assert leader.num_turns > 1
        assert [process.num_turns for process in running if process is not leader] == [0, 0, 0]


async def test_another_takes_over_from_one_that_stops(database_url: str) -> None:
    """The connection that held the lock goes back to its pool, and lives on."""
    async with processes(database_url, 3) as running:
        leader = await the_leader(running)
        await leader.leadership.stop()
        num_turns = leader.num_turns
        others = [process for process in running if process is not leader]
        await the_leader(others)
        assert leader.num_turns == num_turns


async def test_somebody_leads_again_when_the_lock_cannot_be_given_back(database_url: str) -> None:
    """The connection lives, and would go back to its pool with the lock."""

    def fail(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "pg_advisory_unlock" in statement:
            raise OSError("no unlocking today")

    async with processes(database_url, 2) as running:
        leader = await the_leader(running)
        event.listen(Engine, "before_cursor_execute", fail)
        await leader.leadership.stop()
        event.remove(Engine, "before_cursor_execute", fail)
        await the_leader([process for process in running if process is not leader])


async def test_who_loses_the_connection_leads_no_more_and_somebody_leads_again(database_url: str) -> None:
    async with processes(database_url, 2) as running:
        leader = await the_leader(running)
        kill_connections(database_url, f"leader {running.index(leader)}")
        async with asyncio.timeout(10):
            while not leader.terms[0].is_over:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await the_leader(running)


async def test_somebody_leads_again_after_an_outage_of_the_store(
    database_url: str, store_switch: StoreSwitch
) -> None:
    async with processes(database_url, 2) as running:
        leader = await the_leader(running)
        store_switch.off()
        async with asyncio.timeout(10):
            while leader.leads:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        store_switch.on()
        await the_leader(running)


async def test_a_turn_that_fails_is_told_once_and_tried_again(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(database)
    process.error = StoreUnavailable("The database cannot be reached right now.")
    await process.leadership.start()
    async with asyncio.timeout(10):
        while process.num_turns < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    process.error = None
    num_turns = process.num_turns
    async with asyncio.timeout(10):
        while process.num_turns < num_turns + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await process.leadership.stop()
    told = [record.message for record in caplog.records if "duty fails" in record.message]
    assert told == ["the test's duty fails: The database cannot be reached right now."]


async def test_a_new_term_has_duties_of_its_own(database: Database) -> None:
    """What a duty knows of its term must not outlive it."""
    process = Process(database)
    made: list[Duty] = []

    def duties() -> list[Duty]:
        made.extend(process.duties())
        return made[-1:]

    for _ in range(2):
        leadership = Leadership(database, 7, duties, try_seconds=0.05)
        await leadership.start()
        await process.until_leads()
        await leadership.stop()
    assert len(made) == 2
    assert made[0] is not made[1]
