"""Partitions of the ledger: there before they are needed, gone in time, by a role that may define nothing."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import errors

from gateway.db import Database
from gateway.usage import queries
from gateway.usage.queries import UsageEvent, record
from gateway.usage.tables import usage_rollup_day, usage_rollup_minute
from gateway.usage.upkeep import LedgerUpkeep, Retention, maintain
from migrations.run import downgrade, upgrade
from tests.builders.store_rows import rows, until_value, value
from tests.builders.usage import days_ago, usage_event

pytestmark = pytest.mark.postgres

PARTITIONS = """
    SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
    JOIN pg_class parent ON parent.oid = inhparent WHERE parent.relname = 'usage_event' ORDER BY 1
"""
NUM_PARTITIONS = (
    "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhparent WHERE relname LIKE 'usage%'"
)
KEPT = "SELECT request_id FROM usage_event ORDER BY admitted_at"
BEFORE = "20261201_engine_config"


def partition(days_ahead: int) -> str:
    return f"usage_event_{datetime.now(UTC) + timedelta(days=days_ahead):%Y%m%d}"


def as_owner(url: str, *statements: str) -> None:
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def without_partitions(url: str) -> None:
    """A ledger that nobody has looked after."""
    tables = [name for (name,) in rows(url, PARTITIONS) if name != "usage_event_default"]
    as_owner(url, *(f"DROP TABLE usage_partitions.{name}" for name in tables))


def with_partitions(url: str, days: Sequence[int]) -> None:
    """A ledger that is older than that many days."""
    firsts = [days_ago(each).replace(hour=0) for each in days]
    make = "SELECT usage_make_partition('usage_event', '{}', '{}')"
    as_owner(url, *(make.format(first, first + timedelta(days=1)) for first in firsts))


async def recorded(database: Database, events: Sequence[UsageEvent]) -> None:
    async with database.system_transaction() as connection:
        await record(connection, events)


async def maintained(database: Database, **days: int) -> None:
    async with database.system_transaction() as connection:
        await maintain(connection, Retention(**days))


def test_a_new_ledger_has_partitions_for_a_week(database_url: str) -> None:
    names = {name for (name,) in rows(database_url, PARTITIONS)}
    assert names == {"usage_event_default", *(partition(days) for days in range(8))}


async def test_missing_partitions_are_made_by_the_role_that_serves(
    database: Database, database_url: str
) -> None:
    without_partitions(database_url)
    await maintained(database)
    assert {partition(0), partition(7)} <= {name for (name,) in rows(database_url, PARTITIONS)}


async def test_five_processes_maintaining_at_once_make_the_same_as_one(
    database: Database, database_url: str
) -> None:
    expected = value(database_url, NUM_PARTITIONS)
    without_partitions(database_url)
    await asyncio.gather(*(maintained(database) for _ in range(5)))
    assert value(database_url, NUM_PARTITIONS) == expected
    await maintained(database)
    assert value(database_url, NUM_PARTITIONS) == expected


async def test_rows_that_came_before_their_partition_move_into_it(
    database: Database, database_url: str
) -> None:
    without_partitions(database_url)
    await recorded(database, [usage_event("a", admitted_at=days_ago(0)), usage_event("b")])
    assert rows(database_url, "SELECT count(*) FROM usage_partitions.usage_event_default") == [(2,)]
    await maintained(database, event_days=36_500)
    assert value(database_url, f"SELECT request_id FROM usage_partitions.{partition(0)}") == "a"
    assert rows(database_url, KEPT) == [("b",), ("a",)]


@pytest.mark.parametrize("has_partition", [True, False])
async def test_what_is_kept_longer_than_wanted_goes_and_nothing_younger(
    database: Database, database_url: str, has_partition: bool
) -> None:
    if has_partition:
        with_partitions(database_url, [9, 10, 11, 12])
    midnight = days_ago(10).replace(hour=0)
    ages = {"old": days_ago(12), "late": midnight - timedelta(microseconds=1), "first": midnight}
    await recorded(
        database,
        [usage_event(name, admitted_at=at) for name, at in {**ages, "young": days_ago(9)}.items()],
    )
    await maintained(database, event_days=10)
    assert rows(database_url, KEPT) == [("first",), ("young",)]


async def test_sums_outlive_the_events_and_days_the_minutes(database: Database, database_url: str) -> None:
    await recorded(database, [usage_event(f"{days}", admitted_at=days_ago(days)) for days in (50, 200, 500)])
    await maintained(database, event_days=40, minute_days=100)
    assert rows(database_url, KEPT) == []
    assert value(database_url, "SELECT count(*) FROM usage_rollup_minute") == 1
    assert value(database_url, "SELECT count(*) FROM usage_rollup_day") == 2


async def test_retention_of_no_day_at_all_is_refused(database: Database, database_url: str) -> None:
    await recorded(database, [usage_event(admitted_at=days_ago(0))])
    with pytest.raises(Exception, match="nothing of usage_rollup_day is dropped"):
        async with database.system_transaction() as connection:
            await queries.drop_old(connection, usage_rollup_day, keep_days=0)
    assert value(database_url, "SELECT count(*) FROM usage_rollup_day") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM usage_event",
        "TRUNCATE usage_rollup_minute",
        "DROP TABLE usage_rollup_day",
        "SELECT * FROM usage_partitions.usage_event_default",
        "SELECT usage_make_partition('usage_event', now(), now())",
    ],
)
def test_who_serves_can_take_nothing_out_of_the_ledger(database_url: str, statement: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("SET ROLE sluice_app")
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement.encode())


def test_nobody_else_may_call_what_runs_as_the_owner(database_url: str) -> None:
    may_call = "has_function_privilege('pg_monitor', oid, 'EXECUTE')"
    query = f"SELECT bool_or({may_call}) FROM pg_proc WHERE proname LIKE 'usage%'"
    assert value(database_url, query) is False


async def test_a_long_query_delays_dropping_and_not_the_writers(
    database: Database, database_url: str
) -> None:
    with_partitions(database_url, [99])
    await recorded(database, [usage_event("old", admitted_at=days_ago(99))])
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM usage_event")
        with pytest.raises(Exception, match="database"):
            await maintained(database)
        await recorded(database, [usage_event("new", admitted_at=days_ago(0))])
    await maintained(database)
    assert rows(database_url, KEPT) == [("new",)]


async def test_a_gateway_looks_after_the_ledger_as_soon_as_it_starts(
    database: Database, database_url: str
) -> None:
    without_partitions(database_url)
    upkeep = LedgerUpkeep(database, Retention())
    await upkeep.start()
    try:
        await asyncio.to_thread(
            asyncio.run, until_value(database_url, f"SELECT count(*) FROM ({PARTITIONS})", 9)
        )
    finally:
        await upkeep.stop()


def test_rows_of_an_older_ledger_move_over_and_are_summed_up(database_url: str) -> None:
    downgrade(database_url, BEFORE)
    as_owner(
        database_url,
        "INSERT INTO usage_event SELECT 'request-' || n, 't', 'p', 'k', 'm', 'offline', 10, 4, 5, 'finished',"
        " now() - make_interval(days => n % 5) FROM generate_series(1, 1000) n",
    )
    kept = rows(database_url, "SELECT * FROM usage_event ORDER BY request_id")
    upgrade(database_url)
    assert rows(database_url, "SELECT * FROM usage_event ORDER BY request_id") == kept
    assert value(database_url, "SELECT count(*) FROM usage_partitions.usage_event_default") == 0
    for table in (usage_rollup_minute.name, usage_rollup_day.name):
        totals = f"SELECT sum(num_requests)::int, sum(prompt_tokens + completion_tokens)::int FROM {table}"
        assert rows(database_url, totals) == [(1000, 15_000)]
    downgrade(database_url, BEFORE)
    assert rows(database_url, "SELECT * FROM usage_event ORDER BY request_id") == kept
