"""Four processes and four hundred clients at once: a limit is one limit, however many replicas there are."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from gateway.db import Database
from gateway.quotas.limits import QuotaKind
from tests.builders.quota_clients import Tally, run_clients
from tests.builders.store import Customer, make_customer
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres

NUM_PROCESSES = 4
NUM_CLIENTS = 100  # in each process


SUM_USED = "SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint FROM usage_event"
LENT_OUT = "SELECT coalesce(max(available + outstanding), 0) FROM quota_bucket"


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Starting them takes longer than what they do in any one test."""
    with ProcessPoolExecutor(NUM_PROCESSES, mp_context=get_context("spawn")) as processes:
        yield processes


async def run_processes(
    processes: ProcessPoolExecutor, url: str, customer: Customer, *, num_turns: int
) -> tuple[list[Tally], float]:
    """What each process got, and the most credit that there ever was in one bucket, seen from outside."""
    loop = asyncio.get_running_loop()
    most = 0.0
    work = asyncio.gather(
        *(
            loop.run_in_executor(processes, _run_one, url, f"process-{number}", customer, num_turns)
            for number in range(NUM_PROCESSES)
        )
    )
    while not work.done():
        most = max(most, float(str(value(url, LENT_OUT))))
        await asyncio.sleep(0.02)
    return list(await work), most


def _run_one(url: str, name: str, customer: Customer, num_turns: int) -> Tally:
    return run_clients(url, name, customer.caller, num_clients=NUM_CLIENTS, num_turns=num_turns)


def most_at_once(tallies: list[Tally]) -> int:
    """The most requests that held something in one moment."""
    changes = [
        (at, change)
        for tally in tallies
        for span in tally.spans
        for at, change in zip(span, (1, -1), strict=True)
    ]
    live = most = 0
    for _, change in sorted(changes):
        live += change
        most = max(most, live)
    return most


async def test_slots_are_never_exceeded(
    database: Database, database_url: str, processes: ProcessPoolExecutor
) -> None:
    customer = await make_customer(database, concurrent_requests=10)
    tallies, most = await run_processes(processes, database_url, customer, num_turns=15)
    assert most <= 10
    assert 5 < most_at_once(tallies) <= 10
    assert value(database_url, "SELECT count(*) FROM usage_event") == sum(one.num_granted for one in tallies)
    assert rows(database_url, "SELECT available, outstanding FROM quota_bucket") == [(10.0, 0.0)]
    assert value(database_url, "SELECT count(*) FROM quota_lease") == 0


async def test_tokens_per_minute_are_never_exceeded(
    database: Database, database_url: str, processes: ProcessPoolExecutor
) -> None:
    limit = 30_000
    customer = await make_customer(database, tokens_per_minute=limit)
    tallies, most = await run_processes(processes, database_url, customer, num_turns=15)
    seconds = value(
        database_url, "SELECT extract(epoch FROM clock_timestamp() - (SELECT created_at FROM tenant))::float8"
    )
    assert isinstance(seconds, float)
    num_used = sum(tally.num_tokens_used for tally in tallies)
    assert sum(tally.num_refused for tally in tallies) > 0
    assert most <= limit
    assert limit * 0.9 < num_used <= limit + limit / 60 * seconds
    assert value(database_url, SUM_USED) == num_used


@pytest.mark.parametrize("kind", [QuotaKind.TOKENS_PER_DAY, QuotaKind.TOKENS_PER_MONTH])
async def test_a_budget_is_used_up_to_its_last_token_and_not_beyond(
    database: Database, database_url: str, processes: ProcessPoolExecutor, kind: QuotaKind
) -> None:
    limit = 30_000
    customer = await make_customer(database, limits={kind: limit})
    tallies, _ = await run_processes(processes, database_url, customer, num_turns=15)
    num_used = sum(tally.num_tokens_used for tally in tallies)
    assert sum(tally.num_refused for tally in tallies) > 0
    assert limit - 30 < num_used <= limit  # what is left is less than any request asks for
    assert value(database_url, SUM_USED) == num_used
    assert rows(database_url, "SELECT available, outstanding FROM quota_bucket") == [(limit - num_used, 0.0)]


async def test_requests_per_minute_are_never_exceeded(
    database: Database, database_url: str, processes: ProcessPoolExecutor
) -> None:
    limit = 300
    customer = await make_customer(database, limits={QuotaKind.REQUESTS_PER_MINUTE: limit})
    tallies, most = await run_processes(processes, database_url, customer, num_turns=10)
    seconds = value(
        database_url, "SELECT extract(epoch FROM clock_timestamp() - (SELECT created_at FROM tenant))::float8"
    )
    assert isinstance(seconds, float)
    assert most <= limit
    assert limit <= sum(tally.num_granted for tally in tallies) <= limit + limit / 60 * seconds
