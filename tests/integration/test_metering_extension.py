"""A live answer pays for more output against a real store: in time, within its budget, stranding nothing."""

import asyncio
from pathlib import Path

import pytest

from engine.protocol import RequestClass
from gateway.db import Database
from gateway.keys.caller import Caller
from gateway.limit_administration import Target, set_limit
from gateway.metering import (
    EXTENDED_WITHIN_SECONDS,
    OUTPUT_TOKENS_AHEAD,
    Metering,
)
from gateway.quotas.limits import QuotaKind
from gateway.quotas.reservation import Demand, Payment, Reservation
from gateway.quotas.sizing import EXTENSION_TOKENS
from gateway.usage.journal_format import JournalRecord, Reached, read
from gateway.usage.outcome import Outcome
from tests.builders.journals import no_file_longer_than
from tests.builders.store import make_customer, used
from tests.builders.store_rows import rows, value
from tests.fakes.slow_database import SlowDatabase

pytestmark = pytest.mark.postgres


def written_down(journal_dir: Path) -> list[JournalRecord]:
    """All that the one journal in the folder says."""
    (segment,) = journal_dir.rglob("*.journal")
    records, _ = read(segment.read_bytes())
    return records


async def reserve_uncapped(metering: Metering, caller: Caller, request_id: str = "live") -> Reservation:
    """A prompt of 40 tokens whose answer may have up to 4,000."""
    return await metering.reserve(
        request_id=request_id,
        caller=caller,
        model="model",
        request_class=RequestClass.INTERACTIVE,
        demand=Demand(prompt_tokens=40, output_cap=4_000, output_floor=256),
    )


async def test_answers_without_a_cap_hold_only_what_they_are_near(
    database: Database, metering: Metering
) -> None:
    """Reserved whole, a handful of them kept everybody out of a budget that none of them used."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 10 * (EXTENSION_TOKENS + 40)})
    for number in range(10):
        reservation = await reserve_uncapped(metering, customer.caller, f"live-{number}")
        assert (reservation.paid_tokens, reservation.output_cap) == (EXTENSION_TOKENS, 4_000)


async def test_a_live_answer_is_extended_out_of_the_buckets_that_let_it_in(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 600})
    reservation = await reserve_uncapped(metering, customer.caller)
    assert await metering.extend(reservation) == Payment(paid_tokens=512, ended_by=None)
    assert await metering.extend(reservation) == Payment(paid_tokens=560, ended_by=None)
    assert await metering.extend(reservation) == Payment(paid_tokens=560, ended_by="tenant/tokens_per_day")
    metering.settle(reservation, used(40, 300), Outcome.FINISHED)
    await metering.stop()
    assert value(database_url, "SELECT available::int FROM quota_bucket") == 260


async def test_a_limit_that_is_lifted_does_not_end_the_answers_that_it_let_in(
    database: Database, metering: Metering
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 300})
    reservation = await reserve_uncapped(metering, customer.caller)
    await set_limit(database, "test", Target(tenant=customer.tenant.id), QuotaKind.TOKENS_PER_DAY, None)
    assert await metering.extend(reservation) == Payment(paid_tokens=512, ended_by=None)


async def test_an_answer_ends_after_two_seconds_though_the_store_says_nothing(
    database: Database, slow_database: SlowDatabase
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 10_000})
    metering = Metering(slow_database, "replica-1")
    await metering.start()
    reservation = await reserve_uncapped(metering, customer.caller)
    async with slow_database.late_answers() as answers, asyncio.timeout(2 * EXTENDED_WITHIN_SECONDS):
        while (payment := await metering.extend(reservation)).ended_by is None:
            pass  # out of what is lent ahead
    assert payment == Payment(paid_tokens=reservation.paid_tokens, ended_by="database")
    answers.may_arrive.set()
    await metering.stop()


async def test_an_answer_that_ends_while_the_store_is_asked_for_more_keeps_nothing_from_others(
    database: Database, slow_database: SlowDatabase, database_url: str
) -> None:
    """What was free here stayed promised to it, so that this replica neither used it nor gave it back."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 10_000})
    metering = Metering(slow_database, "replica-1")
    await metering.start()
    reservation = await reserve_uncapped(metering, customer.caller)
    async with slow_database.late_answers() as answers:
        extending = asyncio.create_task(metering.extend(reservation))
        await answers.are_waiting.wait()
    extending.cancel()
    metering.settle(reservation, used(40, 10), Outcome.FINISHED)
    answers.may_arrive.set()
    await metering.stop()
    left = rows(database_url, "SELECT available::int, outstanding::int FROM quota_bucket")
    assert left == [(9_950, 0)]


async def test_what_cannot_be_written_down_is_not_paid_for(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 10_000})
    metering = Metering(database, "replica-1", journal_dir=tmp_path)
    await metering.start()
    reservation = await reserve_uncapped(metering, customer.caller)
    with no_file_longer_than(0):
        payment = await metering.extend(reservation)
    assert payment == Payment(paid_tokens=EXTENSION_TOKENS, ended_by="journal")
    metering.settle(reservation, used(40, 10), Outcome.FINISHED)
    await metering.stop()
    left = rows(database_url, "SELECT available::int, outstanding::int FROM quota_bucket")
    assert left == [(9_950, 0)]


async def test_what_could_not_be_written_down_is_written_down_with_the_next_tokens(
    database: Database, tmp_path: Path
) -> None:
    customer = await make_customer(database)
    metering = Metering(database, "replica-1", journal_dir=tmp_path)
    await metering.start()
    reservation = await reserve_uncapped(metering, customer.caller)
    with no_file_longer_than(0):
        metering.reached(reservation, output_tokens=1)
    metering.reached(reservation, output_tokens=2)
    assert written_down(tmp_path)[-1] == Reached(reservation.request_id, 40, 2 + OUTPUT_TOKENS_AHEAD)
    metering.settle(reservation, used(40, 2), Outcome.FINISHED)
    await metering.stop()


async def test_what_is_borrowed_for_an_answer_that_ends_meanwhile_is_free(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 10_000})
    reservation = await reserve_uncapped(metering, customer.caller)
    extending = asyncio.create_task(metering.extend(reservation))
    await asyncio.sleep(0)  # it has asked the store
    metering.settle(reservation, used(40, 10), Outcome.CANCELLED)
    await metering.stop()
    extending.cancel()
    left = rows(database_url, "SELECT available::int, outstanding::int FROM quota_bucket")
    assert left == [(9_950, 0)]
