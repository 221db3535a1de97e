"""Reports of usage: right by every dimension, page by page, and read from the sums alone."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection
from typer.testing import CliRunner

from deploy.cli import app
from engine.protocol import RequestClass, Usage
from gateway.db import Database
from gateway.usage import reports
from gateway.usage.queries import record
from gateway.usage.reports import Dimension, UsageAt, UsageOf
from gateway.usage.span import Span, Unit
from tests.builders.store import Customer, make_customer
from tests.builders.usage import usage_event

pytestmark = pytest.mark.postgres

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
EVER = Span(NOON.replace(hour=0) - timedelta(days=30))


async def use(
    database: Database, customer: Customer, *tokens: int, at: datetime = NOON, **facts: object
) -> None:
    """A request for each, of so many output tokens and no prompt."""
    caller = customer.caller
    who = {"tenant": caller.tenant, "project": caller.project, "key": caller.key, "admitted_at": at}
    async with database.system_transaction() as connection:
        await record(
            connection,
            [
                usage_event(f"{caller.tenant}-{at}-{number}-{facts}", usage=Usage(0, 0, count), **who | facts)
                for number, count in enumerate(tokens)
            ],
        )


@pytest.fixture
async def acme(database: Database) -> Customer:
    return await make_customer(database, "acme")


@pytest.fixture
async def zenith(database: Database) -> Customer:
    return await make_customer(database, "zenith")


async def names_and_tokens(
    database: Database, dimension: Dimension, customer: Customer | None = None, span: Span = EVER
) -> list[tuple[str, int]]:
    tenant_id = None if customer is None else customer.tenant.id
    async with database.system_transaction() as connection:
        rows = await reports.by(connection, dimension, span, tenant_id=tenant_id, limit=100)
    return [(row.name, row.tokens) for row in rows]


async def test_who_used_most_comes_first_by_name(
    database: Database, acme: Customer, zenith: Customer
) -> None:
    await use(database, acme, 1, 2)
    await use(database, zenith, 40)
    await use(database, zenith, 50, model="other", request_class=RequestClass.OFFLINE)
    assert await names_and_tokens(database, Dimension.TENANT) == [("zenith", 90), ("acme", 3)]
    assert await names_and_tokens(database, Dimension.PROJECT) == [("default", 90), ("default", 3)]
    assert await names_and_tokens(database, Dimension.KEY) == [("first", 90), ("first", 3)]
    assert await names_and_tokens(database, Dimension.MODEL) == [("other", 50), ("tiny", 43)]
    assert await names_and_tokens(database, Dimension.CLASS) == [("offline", 50), ("interactive", 43)]


async def test_a_tenants_report_shows_nothing_of_others(
    database: Database, acme: Customer, zenith: Customer
) -> None:
    await use(database, acme, 1)
    await use(database, zenith, 40)
    for dimension in Dimension:
        assert [tokens for _, tokens in await names_and_tokens(database, dimension, acme)] == [1]
    async with database.system_transaction() as connection:
        assert (await reports.total(connection, EVER, tenant_id=acme.tenant.id)).tokens == 1
        days = await reports.over_time(connection, Unit.DAY, EVER, tenant_id=acme.tenant.id, limit=9)
    assert [day.tokens for day in days] == [1]


async def test_what_was_never_used_is_zero(database: Database) -> None:
    async with database.system_transaction() as connection:
        total = await reports.total(connection, EVER, tenant_id=None)
    assert (total.num_requests, total.tokens) == (0, 0)
    assert await names_and_tokens(database, Dimension.TENANT) == []


async def test_a_span_counts_to_the_minute_at_both_ends(database: Database, acme: Customer) -> None:
    minutes = [NOON + timedelta(minutes=minute) for minute in range(3 * 24 * 60)][::7]
    for place, at in enumerate(minutes[:: len(minutes) // 40]):
        await use(database, acme, 1 << place, at=at)
    for since, until in ((10, 50), (10, 24 * 60 + 5), (12 * 60, 36 * 60), (0, 60 * 60)):
        span = Span(NOON + timedelta(minutes=since), NOON + timedelta(minutes=until))
        expected = sum(
            1 << place
            for place, at in enumerate(minutes[:: len(minutes) // 40])
            if span.since <= at < span.until
        )
        async with database.system_transaction() as connection:
            assert (await reports.total(connection, span, tenant_id=None)).tokens == expected


async def test_days_and_minutes_come_in_their_order(database: Database, acme: Customer) -> None:
    for hours in (30, 0, 1):
        await use(database, acme, 5, at=NOON + timedelta(hours=hours))
    async with database.system_transaction() as connection:
        days = await reports.over_time(connection, Unit.DAY, EVER, tenant_id=None, limit=9)
        minutes = await reports.over_time(connection, Unit.MINUTE, EVER, tenant_id=None, limit=9)
    assert [(day.at, day.tokens) for day in days] == [
        (NOON.replace(hour=0), 10),
        (NOON.replace(hour=0) + timedelta(days=1), 5),
    ]
    assert [minute.at for minute in minutes] == [NOON + timedelta(hours=hours) for hours in (0, 1, 30)]


async def test_pages_are_the_whole_list_once_though_many_used_the_same(
    database: Database, acme: Customer
) -> None:
    for number in range(10):
        await use(database, acme, 7 if number % 3 else 9, model=f"model-{number}")
    found: list[UsageOf] = []
    async with database.system_transaction() as connection:
        whole = await reports.by(connection, Dimension.MODEL, EVER, tenant_id=None, limit=100)
        while page := await reports.by(
            connection,
            Dimension.MODEL,
            EVER,
            tenant_id=None,
            limit=3,
            after=found[-1] if found else None,
        ):
            found += page
    assert found == whole
    assert len(found) == 10


async def test_pages_of_minutes_are_all_minutes_once(database: Database, acme: Customer) -> None:
    for minute in range(7):
        await use(database, acme, 1, at=NOON + timedelta(minutes=minute))
    found: list[UsageAt] = []
    async with database.system_transaction() as connection:
        while page := await reports.over_time(
            connection, Unit.MINUTE, EVER, tenant_id=None, limit=2, after=found[-1] if found else None
        ):
            found += page
    assert [row.at for row in found] == [NOON + timedelta(minutes=minute) for minute in range(7)]


# --- what they read ----------------------------------------------------------------------------------------

SEED = """
    INSERT INTO usage_rollup_{unit}
    SELECT date_trunc('{unit}', now(), 'UTC') - make_interval({step} => bucket), 'tenant-' || key % 50,
           'project-' || key % 50, 'key-' || key, 'model', 'interactive', 1, 100, 0, 100
    FROM generate_series(0, {num_buckets} - 1) bucket, generate_series(1, 200) key
"""


@contextmanager
def statements_of(connection: AsyncConnection) -> Iterator[list[tuple[str, object]]]:
    """What is sent to the store meanwhile, with its values."""
    sent: list[tuple[str, object]] = []

    def note(_connection: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        sent.append((statement, values))

    event.listen(connection.sync_connection, "before_cursor_execute", note)
    yield sent
    event.remove(connection.sync_connection, "before_cursor_execute", note)


async def test_reports_read_sums_and_no_single_event_however_much_was_used(database: Database) -> None:
    """H5: pages of usage that took the database down."""
    async with database.system_transaction() as connection:
        for unit, step, num_buckets in (("minute", "mins", 500), ("day", "days", 100)):
            await connection.execute(text(SEED.format(unit=unit, step=step, num_buckets=num_buckets)))
    week = Span(datetime.now(UTC) - timedelta(days=7))
    everything = {"tenant_id": None, "limit": 100}
    async with database.system_transaction() as connection:
        with statements_of(connection) as sent:
            await reports.total(connection, week, tenant_id=None)
            for dimension in Dimension:
                assert await reports.by(connection, dimension, week, **everything)
            for unit in Unit:
                assert await reports.over_time(connection, unit, week, **everything)
        assert len(sent) == 1 + len(Dimension) + len(Unit), "one statement each"
        for statement, values in sent:
            rows = await connection.exec_driver_sql(f"EXPLAIN {statement}", values)
            plan = "\n".join(line for (line,) in rows)
            assert "usage_rollup_" in plan
            assert "usage_event" not in plan


# --- `sluice usage` ----------------------------------------------------------------------------------------


def sluice(url: str, *options: str) -> str:
    runner = CliRunner(env={"COLUMNS": "200"})
    result = runner.invoke(app, ["usage", *options, "--database-url", url])
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_the_command_shows_a_table_with_its_sum(
    database: Database, database_url: str, acme: Customer, zenith: Customer
) -> None:
    await use(database, acme, 1, 2)
    await use(database, zenith, 40)
    lines = await asyncio.to_thread(sluice, database_url, "--since", "2026-01-01")
    assert [line.split() for line in lines.splitlines()[1:]] == [
        ["zenith", "1", "0", "0", "40", "40"],
        ["acme", "2", "0", "0", "3", "3"],
        ["total", "3", "0", "0", "43", "43"],
    ]


@pytest.mark.parametrize("by", ["tenant", "project", "key", "model", "class", "day", "minute"])
async def test_the_command_speaks_json_about_one_tenant(
    database: Database, database_url: str, acme: Customer, zenith: Customer, by: str
) -> None:
    await use(database, acme, 1, 2)
    await use(database, zenith, 40)
    options = ["--since", "2026-01-01", "--tenant", "acme", "--by", by, "--json"]
    document = json.loads(await asyncio.to_thread(sluice, database_url, *options))
    assert document["by"] == by
    assert document["since"] == "2026-01-01T00:00:00+00:00"
    assert [row["tokens"] for row in document["rows"]] == [3]
    assert document["total"] == {
        "num_requests": 2, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 3, "tokens": 3,
    }  # fmt: skip


async def test_the_command_says_when_there_is_more(
    database: Database, database_url: str, acme: Customer
) -> None:
    for days in range(3):
        await use(database, acme, 5, at=NOON + timedelta(days=days))
    options = ["--since", "2026-01-01", "--by", "day", "--limit", "2"]
    lines = await asyncio.to_thread(sluice, database_url, *options)
    assert "2026-01-05" in lines
    assert "2026-01-07" not in lines
    assert "--limit shows more" in lines


async def test_hours_count_back_from_now_and_days_from_their_midnight(
    database: Database, database_url: str, acme: Customer
) -> None:
    now = datetime.now(UTC)
    await use(database, acme, 1, at=now)
    await use(database, acme, 20, at=now - timedelta(hours=2))
    await use(database, acme, 300, at=now.replace(hour=0, minute=0) - timedelta(days=3))
    totals = []
    for since in ("1h", "3h", "2d", "3d"):
        document = json.loads(await asyncio.to_thread(sluice, database_url, "--since", since, "--json"))
        totals.append(document["total"]["tokens"])
    assert totals == [1, 21, 21, 321]


async def test_an_unused_store_is_one_line(database_url: str) -> None:
    assert await asyncio.to_thread(sluice, database_url) == "Nothing was used.\n"


async def test_a_tenant_that_is_not_there_is_one_line(database_url: str) -> None:
    runner = CliRunner()
    result = await asyncio.to_thread(
        runner.invoke, app, ["usage", "--tenant", "nobody", "--database-url", database_url]
    )
    assert str(result.exception) == "There is no tenant 'nobody'."


@pytest.mark.parametrize("since", ["yesterday", "169h", "1w", "-1d", "2026-13-01", ""])
def test_a_since_that_is_none_is_wrong_usage(since: str) -> None:
    result = CliRunner().invoke(app, ["usage", f"--since={since}"])
    assert result.exit_code == 2
    assert "--since" in result.output
