"""Four processes and four hundred clients at once: a limit is one limit, however many replicas there are."""

import asyncio
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from gateway.db import Database
from tests.builders.quota_clients import Tally, run_clients
from tests.builders.store import Customer, make_customer
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres

NUM_PROCESSES = 4
NUM_CLIENTS = 100  # in each process


async def run_processes(url: str, customer: Customer, *, num_turns: int) -> tuple[list[Tally], int]:
    """What each process got, and the most live requests ever seen from outside."""
    loop = asyncio.get_running_loop()
    most_live = 0
    with ProcessPoolExecutor(NUM_PROCESSES, mp_context=get_context("spawn")) as processes:
        work = asyncio.gather(
            *(
                loop.run_in_executor(processes, _run_one, url, f"process-{number}", customer, num_turns)
                for number in range(NUM_PROCESSES)
            )
        )
        while not work.done():
            most_live = max(most_live, int(str(value(url, "SELECT count(*) FROM reservation"))))
            await asyncio.sleep(0.005)
        return list(await work), most_live


def _run_one(url: str, name: str, customer: Customer, num_turns: int) -> Tally:
    return run_clients(url, name, customer.caller, num_clients=NUM_CLIENTS, num_turns=num_turns)


def most_at_once(url: str) -> int:
    """From the ledger: the most requests whose spans overlap in one moment."""
    spans = rows(
        url, "SELECT admitted_at, 1 FROM usage_event UNION ALL SELECT settled_at, -1 FROM usage_event"
    )
    live = most = 0
    for _, change in sorted(spans, key=lambda event: (event[0], event[1])):
        live += int(str(change))
        most = max(most, live)
    return most


async def test_slots_are_never_exceeded(database: Database, database_url: str) -> None:
    customer = await make_customer(database, concurrent_requests=10)
    tallies, most_live = await run_processes(database_url, customer, num_turns=10)
    assert 0 < most_live <= 10
    assert 0 < most_at_once(database_url) <= 10
    num_granted = sum(tally.num_granted for tally in tallies)
    assert value(database_url, "SELECT count(*) FROM usage_event") == num_granted
    assert value(database_url, "SELECT count(*) FROM reservation") == 0


async def test_tokens_are_never_exceeded(database: Database, database_url: str) -> None:
    limit = 3_000
    customer = await make_customer(database, tokens_per_minute=limit)
    tallies, _ = await run_processes(database_url, customer, num_turns=10)
    seconds = value(
        database_url, "SELECT extract(epoch FROM clock_timestamp() - (SELECT created_at FROM tenant))::float8"
    )
    assert isinstance(seconds, float)
    num_used = sum(tally.num_tokens_used for tally in tallies)
    assert sum(tally.num_refused for tally in tallies) > 0
    assert limit * 0.9 < num_used <= limit + limit / 60 * seconds
    assert value(database_url, "SELECT sum(prompt_tokens + completion_tokens) FROM usage_event") == num_used
