"""A gateway process killed hard gives its slots back through the others."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from engine.protocol import RequestRecord
from gateway.db import Database
from gateway.engines.directory import LastRecords
from gateway.metering import Metering
from gateway.quotas.limits import QuotaKind
from gateway.sweep import SWEEP_SECONDS
from gateway.usage.journal_lives import abandoned, release, replay
from migrations.run import upgrade
from tests.builders.store import Customer, make_customer, reserve, used
from tests.builders.store_rows import until_rows, until_value, value

pytestmark = pytest.mark.postgres

IN_DOUBT = 80 + 63  # tokens of output: what its client had got, and what the journal was told ahead
GATEWAY_PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from gateway.db import Database
from gateway.keys.caller import Caller
from gateway.metering import Metering
from gateway.usage.outcome import Outcome
from migrations.run import upgrade
from tests.builders.store import reserve, used

async def main():
    database = Database.connect(sys.argv[1], application_name="dying")
    metering = Metering(database, "dying", journal_dir=Path(sys.argv[3]))
    await metering.start()
    caller = Caller(
        tenant=sys.argv[2],
        tenant_name="acme",
        project="p",
        project_name="default",
        key="k",
        weight=1.0,
        scopes=frozenset(),
    )
    served = await reserve(metering, caller)
    await reserve(metering, caller)
    running = await reserve(metering, caller, output=200)
    metering.reached(running, output_tokens=1)
    metering.reached(running, output_tokens=80)
    metering.settle(served, used(10, 7), Outcome.FINISHED)
    print("holds", flush=True)
    time.sleep(600)  # nothing more is told to the store

asyncio.run(main())
"""


def hold_and_die(url: str, customer: Customer, journal_dir: Path) -> None:
    """Serves one request, is in the middle of another, holds a third; tells the store of no end."""
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY_PROGRAM, url, customer.tenant.id, str(journal_dir)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        process.kill()


def journals(folder: Path) -> list[Path]:
    """Whatever store they are for."""
    return sorted(folder.rglob("*.journal"))


async def test_the_slot_of_a_killed_process_is_free_again(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    customer = await make_customer(database, concurrent_requests=3)
    hold_and_die(database_url, customer, tmp_path)
    survivor = Metering(database, "survivor")
    await survivor.start()
    await until_value(database_url, "SELECT count(*) FROM quota_lease", 0, timeout_seconds=3)
    await reserve(survivor, customer.caller)
    await survivor.stop()


async def test_what_a_killed_process_had_served_is_charged_from_its_journal_once(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    hold_and_die(database_url, customer, tmp_path)
    survivors = [Metering(database, f"survivor-{number}", journal_dir=tmp_path) for number in range(2)]
    for survivor in survivors:
        await survivor.start()
    await until_value(database_url, "SELECT count(*) FROM usage_event", 2, timeout_seconds=10)
    await until_value(database_url, "SELECT outstanding::int FROM quota_bucket", 0)
    assert value(database_url, "SELECT available::int FROM quota_bucket") == 1_000 - 17 - 10 - IN_DOUBT
    for survivor in survivors:
        await survivor.stop()
    assert journals(tmp_path) == []


async def test_a_process_that_starts_later_finds_the_journal_of_one_that_was_closed_without_it(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    hold_and_die(database_url, customer, tmp_path)
    elsewhere = Metering(database, "elsewhere")
    await elsewhere.start()
    await until_value(database_url, "SELECT count(*) FROM replica", 1, timeout_seconds=10)
    assert value(database_url, "SELECT available::int FROM quota_bucket") == 1_000
    same_host = Metering(database, "same-host", journal_dir=tmp_path)
    await same_host.start()
    await until_value(database_url, "SELECT available::int FROM quota_bucket", 1_000 - 17 - 10 - IN_DOUBT)
    for metering in (elsewhere, same_host):
        await metering.stop()
    assert value(database_url, "SELECT count(*) FROM usage_event") == 2


# --- one folder, two stores ---------------------------------------------------------------------------------


async def test_a_journal_is_not_charged_to_another_store_whose_lives_have_the_same_numbers(
    database: Database,
    database_url: str,
    empty_database_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    hold_and_die(database_url, customer, tmp_path)
    left_behind = journals(tmp_path)
    upgrade(empty_database_url)
    other_database = Database.connect(empty_database_url, application_name="other")
    for _ in range(2):  # the second sweeps what the first, of the same number as the dead one, has left
        other = Metering(other_database, "other", journal_dir=tmp_path)
        await other.start()
        await asyncio.sleep(2 * SWEEP_SECONDS)
        await other.stop()
    await other_database.close()
    assert value(empty_database_url, "SELECT count(*) FROM usage_event") == 0
    assert journals(tmp_path) == left_behind
    told = [line.getMessage() for line in caplog.records if "left alone" in line.getMessage()]
    assert told == 2 * [
        f"journals of other databases in {tmp_path} are left alone: {left_behind[0].parent.name}"
    ]
    survivor = await survivor_beside(database, tmp_path)
    await until_rows(database_url, ENDS, [(10, 7, "finished"), (10, IN_DOUBT, "in_doubt")])
    await survivor.stop()


def test_no_two_stores_have_the_same_name(database_url: str, empty_database_url: str) -> None:
    upgrade(empty_database_url)
    names = [value(url, "SELECT id FROM store_identity") for url in (database_url, empty_database_url)]
    assert names[0] != names[1]


# --- gateway and engine dead --------------------------------------------------------------------------------

ENDS = "SELECT prompt_tokens, completion_tokens, outcome FROM usage_event ORDER BY completion_tokens"


async def test_what_a_client_had_got_is_charged_though_gateway_and_engine_died(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The engine that is there now remembers nothing. What only waited is charged nothing."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    hold_and_die(database_url, customer, tmp_path)
    survivor = await survivor_beside(database, tmp_path)
    await until_rows(database_url, ENDS, [(10, 7, "finished"), (10, IN_DOUBT, "in_doubt")])
    await survivor.stop()


async def test_an_engine_that_lives_knows_better_than_the_journal(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    hold_and_die(database_url, customer, tmp_path)
    (life,) = abandoned(journals(tmp_path)[0].parent)
    running = next(opened for opened in replay(life).open.values() if opened.most_used is not None)
    release(life)
    record = RequestRecord(id=running.request_id, usage=used(10, 90), account=running.account)
    survivor = await survivor_beside(database, tmp_path, record)
    await until_rows(database_url, ENDS, [(10, 7, "finished"), (10, 90, "lost")])
    await until_value(database_url, "SELECT available::int FROM quota_bucket", 1_000 - 17 - 100)
    await survivor.stop()


async def survivor_beside(database: Database, journal_dir: Path, *records: RequestRecord) -> Metering:
    """All engines have answered it, with these records."""

    async def end_life(_: int) -> LastRecords:
        return LastRecords(records=records, is_complete=True)

    survivor = Metering(database, "survivor", end_life, journal_dir=journal_dir)
    await survivor.start()
    return survivor
