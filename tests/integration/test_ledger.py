"""The ledger counts each request once, whoever reports it, and its sums never disagree with its events."""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from engine.protocol import RequestClass, Usage
from gateway.db import Database
from gateway.usage.outcome import Outcome
from gateway.usage.queries import UsageEvent, record
from tests.builders.store_rows import rows, until_value, value
from tests.builders.usage import ADMITTED_AT, in_doubt, lost, usage_event

pytestmark = pytest.mark.postgres

LEDGER = (
    "SELECT request_id, prompt_tokens, cached_tokens, completion_tokens, outcome FROM usage_event ORDER BY 1"
)
BY_MINUTE = """
    SELECT bucket_start, tenant_id, request_class, num_requests, prompt_tokens FROM usage_rollup_minute
    ORDER BY 1, 2, 3
"""
BY_DAY = "SELECT num_requests, prompt_tokens, cached_tokens, completion_tokens FROM usage_rollup_day"
DISAGREEMENTS = """
    WITH events AS (
        SELECT date_trunc('{unit}', admitted_at, 'UTC') AS bucket_start, tenant_id, project_id, key_id, model,
               request_class, count(*)::bigint, sum(prompt_tokens)::bigint, sum(cached_tokens)::bigint,
               sum(completion_tokens)::bigint
        FROM usage_event GROUP BY 1, 2, 3, 4, 5, 6
    )
    (TABLE events EXCEPT TABLE usage_rollup_{unit}) UNION ALL (TABLE usage_rollup_{unit} EXCEPT TABLE events)
"""


async def recorded(database: Database, events: Sequence[UsageEvent]) -> dict[str, int]:
    async with database.system_transaction() as connection:
        return await record(connection, events)


def disagreements(url: str) -> list[tuple[object, ...]]:
    """Buckets in which the sums are not those of the events."""
    by_minute, by_day = (DISAGREEMENTS.format(unit=unit) for unit in ("minute", "day"))
    return [*rows(url, by_minute), *rows(url, by_day)]


async def test_a_request_is_counted_with_the_tokens_it_used(database: Database, database_url: str) -> None:
    assert await recorded(database, [usage_event("a"), usage_event("b", usage=Usage(1, 0, 2))]) == {
        "a": 15,
        "b": 3,
    }
    assert rows(database_url, LEDGER) == [("a", 10, 4, 5, "finished"), ("b", 1, 0, 2, "finished")]
    assert rows(database_url, BY_DAY) == [(2, 11, 4, 7)]


async def test_a_request_reported_again_moves_nothing(database: Database, database_url: str) -> None:
    await recorded(database, [usage_event("a")])
    assert await recorded(database, [usage_event("a"), usage_event("b")]) == {"b": 15}
    assert await recorded(database, [usage_event("a", usage=Usage(99, 0, 99))]) == {}
    assert rows(database_url, BY_DAY) == [(2, 20, 8, 10)]


async def test_a_request_reported_twice_at_once_is_counted_once(
    database: Database, database_url: str
) -> None:
    assert await recorded(database, [usage_event("a"), usage_event("a")]) == {"a": 15}
    assert rows(database_url, BY_DAY) == [(1, 10, 4, 5)]


async def test_nothing_to_record_is_no_statement(database: Database) -> None:
    assert await recorded(database, []) == {}


async def test_usage_of_zero_is_recorded_as_zero_and_not_as_unknown(
    database: Database, database_url: str
) -> None:
    """C4: a refused request used nothing, which is not the same as nobody knowing."""
    refused = usage_event("a", usage=Usage(0, 0, 0), outcome=Outcome.REFUSED)
    assert await recorded(database, [refused]) == {"a": 0}
    assert await recorded(database, [usage_event("a")]) == {}, "no later guess takes its place"
    assert rows(database_url, LEDGER) == [("a", 0, 0, 0, "refused")]
    assert rows(database_url, BY_DAY) == [(1, 0, 0, 0)]


async def test_sums_fall_into_the_minute_of_admission(database: Database, database_url: str) -> None:
    minute = ADMITTED_AT.replace(second=0, microsecond=0)
    await recorded(
        database,
        [
            usage_event("a"),
            usage_event("b", admitted_at=ADMITTED_AT + timedelta(seconds=3)),
            usage_event("c", admitted_at=ADMITTED_AT + timedelta(seconds=4)),
            usage_event("d", request_class=RequestClass.OFFLINE),
            usage_event("e", tenant="another"),
        ],
    )
    assert rows(database_url, BY_MINUTE) == [
        (minute, "another", "interactive", 1, 10),
        (minute, "tenant", "interactive", 2, 20),
        (minute, "tenant", "offline", 1, 10),
        (minute + timedelta(minutes=1), "tenant", "interactive", 1, 10),
    ]
    assert disagreements(database_url) == []


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_was_lost_yields_to_the_truth_by_the_difference(
    database: Database, database_url: str, at_once: bool
) -> None:
    reports = [lost("a", num_known=3), usage_event("a")]
    groups = [reports] if at_once else [[report] for report in reports]
    charged = [await recorded(database, group) for group in groups]
    assert sum(each.get("a", 0) for each in charged) == 15
    assert rows(database_url, LEDGER) == [("a", 10, 4, 5, "finished")]
    assert rows(database_url, BY_DAY) == [(1, 10, 4, 5)]


async def test_what_is_known_cannot_be_lost(database: Database, database_url: str) -> None:
    await recorded(database, [usage_event("a")])
    assert await recorded(database, [lost("a", num_known=99)]) == {}
    assert rows(database_url, LEDGER) == [("a", 10, 4, 5, "finished")]


async def test_the_truth_may_be_less_than_what_was_feared(database: Database, database_url: str) -> None:
    await recorded(database, [lost("a", num_known=40)])
    assert await recorded(database, [usage_event("a")]) == {"a": -25}
    assert disagreements(database_url) == []


async def test_of_two_that_know_of_a_lost_request_who_knows_more_is_right(
    database: Database, database_url: str
) -> None:
    assert await recorded(database, [lost("a", num_known=3)]) == {"a": 3}
    assert await recorded(database, [lost("a", num_known=2)]) == {}
    assert await recorded(database, [lost("a", num_known=7)]) == {"a": 4}
    assert rows(database_url, BY_DAY) == [(1, 0, 0, 7)]


async def test_what_is_in_doubt_yields_to_an_engine_that_knows_of_less_and_never_the_other_way(
    database: Database, database_url: str
) -> None:
    assert await recorded(database, [in_doubt("a", at_most=64)]) == {"a": 64}
    assert await recorded(database, [lost("a", num_known=7), in_doubt("a", at_most=64)]) == {"a": -57}
    assert await recorded(database, [in_doubt("a", at_most=64)]) == {}
    assert await recorded(database, [usage_event("a")]) == {"a": 8}
    assert rows(database_url, LEDGER) == [("a", 10, 4, 5, "finished")]
    assert disagreements(database_url) == []


@pytest.mark.parametrize("first", [[], ["lost"]], ids=["new", "lost"])
async def test_two_who_record_the_same_at_once_count_it_once(
    database: Database, database_url: str, first: list[str]
) -> None:
    """The second finds the rows of the first, uncommitted, and waits for what becomes of them."""
    await recorded(database, [lost("b") for _ in first])
    events = [usage_event(name) for name in "abc"]
    async with database.system_transaction() as connection:
        charged = await record(connection, events)
        second = asyncio.create_task(recorded(database, list(reversed(events))))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'"
        await asyncio.to_thread(asyncio.run, until_value(database_url, waiting, 1))
    assert charged == {"a": 15, "b": 15, "c": 15}
    assert await second == {}
    assert rows(database_url, BY_DAY) == [(3, 30, 12, 15)]


async def test_recording_that_is_taken_back_counts_nothing(database: Database, database_url: str) -> None:
    async def record_and_fail() -> None:
        async with database.system_transaction() as connection:
            await record(connection, [usage_event("a")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await record_and_fail()
    assert value(database_url, "SELECT count(*) FROM usage_rollup_minute") == 0
    assert await recorded(database, [usage_event("a")]) == {"a": 15}


def any_report(dice: random.Random) -> UsageEvent:
    """Of one of 800 requests in 5 buckets: lost, or what it truly used."""
    number = dice.randrange(800)
    name = f"request-{number:03}"
    if dice.random() < 0.3:
        report = lost(name, num_known=dice.randrange(5))
    else:
        report = usage_event(name, usage=Usage(number, number // 2, 1))
    return replace(report, model=f"model-{number % 5}")


async def test_sums_equal_events_and_charges_whatever_replicas_report_at_once(
    database: Database, database_url: str
) -> None:
    """B7: nothing stays counted that no request used, and nobody deadlocks."""
    dice = random.Random(7)
    groups = [[any_report(dice) for _ in range(dice.randrange(1, 20))] for _ in range(80)]
    charges = await asyncio.gather(*(recorded(database, group) for group in groups))
    assert disagreements(database_url) == []
    assert value(database_url, "SELECT sum(prompt_tokens + completion_tokens)::int FROM usage_event") == sum(
        sum(charged.values()) for charged in charges
    )
