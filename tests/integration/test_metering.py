"""Reserving and settling against a real store: never above a limit, never counted twice, never leaked."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from engine.protocol import Usage
from gateway.administration import get_tenant, set_limits
from gateway.db import Database
from gateway.errors import LimitReached, StoreUnavailable
from gateway.keys.caller import Caller
from gateway.metering import Metering
from gateway.quotas.limits import TenantLimits
from gateway.quotas.reservation import Reservation
from gateway.usage.outcome import Outcome
from tests.builders.store import NOTHING_USED, make_customer, reserve, used
from tests.builders.store_rows import rows, until_value, value
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

NUM_LIVE = "SELECT count(*) FROM reservation"
AVAILABLE = "SELECT available FROM quota_bucket"
LEDGER = "SELECT request_id, prompt_tokens, completion_tokens, outcome FROM usage_event ORDER BY request_id"


@pytest.fixture
async def metering(database: Database) -> AsyncIterator[Metering]:
    metering = Metering(database, "replica-1")
    await metering.start()
    yield metering
    await metering.stop()


async def reserve_many(metering: Metering, caller: Caller, *, num_requests: int) -> list[Reservation]:
    """Those that were let in; every other one was refused by a limit."""
    answers = await asyncio.gather(
        *(reserve(metering, caller) for _ in range(num_requests)), return_exceptions=True
    )
    granted = [answer for answer in answers if isinstance(answer, Reservation)]
    refused = [answer for answer in answers if isinstance(answer, LimitReached)]
    assert len(granted) + len(refused) == num_requests
    return granted


async def test_two_hundred_at_once_never_exceed_the_slots(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=7)
    granted = await reserve_many(metering, customer.caller, num_requests=200)
    assert len(granted) == 7
    assert value(database_url, NUM_LIVE) == 7


async def test_two_hundred_at_once_never_exceed_the_tokens(database: Database, metering: Metering) -> None:
    customer = await make_customer(database, tokens_per_minute=300)
    granted = await reserve_many(metering, customer.caller, num_requests=200)
    assert len(granted) == 10  # of 30 tokens each; a thirty-first token takes 0.2 s to refill


async def test_two_hundred_at_once_take_few_transactions(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database)
    await reserve_many(metering, customer.caller, num_requests=200)
    assert value(database_url, "SELECT count(DISTINCT xmin::text) FROM reservation") in {1, 2, 3}


async def test_a_refused_request_counts_nowhere(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=1, tokens_per_minute=1_000)
    await reserve(metering, customer.caller)
    before = value(database_url, AVAILABLE)
    with pytest.raises(LimitReached) as caught:
        await reserve(metering, customer.caller)
    assert caught.value.code == "concurrency_limit_exceeded"
    assert (value(database_url, NUM_LIVE), value(database_url, AVAILABLE)) == (1, before)


async def test_a_request_over_the_tokens_left_is_told_when_to_come_back(
    database: Database, metering: Metering
) -> None:
    customer = await make_customer(database, tokens_per_minute=60)
    await reserve(metering, customer.caller, prompt=40, output=20)
    with pytest.raises(
        LimitReached, match=r"tokens per min \(TPM\): Limit 60, Used 60, Requested 30"
    ) as caught:
        await reserve(metering, customer.caller)
    assert caught.value.retry_after_seconds == pytest.approx(30, abs=1)


async def test_a_request_over_the_whole_limit_is_told_not_to_retry(
    database: Database, metering: Metering
) -> None:
    customer = await make_customer(database, tokens_per_minute=60)
    with pytest.raises(LimitReached) as caught:
        await reserve(metering, customer.caller, prompt=61)
    assert (caught.value.should_retry, caught.value.retry_after_seconds) == (False, None)


async def test_settling_frees_the_slot_and_gives_unused_tokens_back(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=1, tokens_per_minute=60)
    reservation = await reserve(metering, customer.caller, prompt=10, output=50)
    await metering.settle(reservation, used(10, 20), Outcome.FINISHED)
    assert value(database_url, NUM_LIVE) == 0
    assert value(database_url, AVAILABLE) == pytest.approx(30, abs=1)
    assert rows(database_url, LEDGER) == [(reservation.request_id, 10, 20, "finished")]


async def test_settling_twice_counts_once(database: Database, metering: Metering, database_url: str) -> None:
    customer = await make_customer(database, tokens_per_minute=60)
    reservation = await reserve(metering, customer.caller)
    await asyncio.gather(
        metering.settle(reservation, used(10, 20), Outcome.FINISHED),
        metering.settle(reservation, NOTHING_USED, Outcome.CANCELLED),
    )
    await metering.settle(reservation, NOTHING_USED, Outcome.CANCELLED)
    assert rows(database_url, LEDGER) == [(reservation.request_id, 10, 20, "finished")]
    assert value(database_url, AVAILABLE) == pytest.approx(30, abs=1)


async def test_settling_cancelled_midway_still_settles(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database)
    reservation = await reserve(metering, customer.caller)
    settling = asyncio.create_task(metering.settle(reservation, used(10, 5), Outcome.CANCELLED))
    await asyncio.sleep(0)  # it has begun
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    await metering.stop()
    assert value(database_url, NUM_LIVE) == 0
    assert rows(database_url, LEDGER) == [(reservation.request_id, 10, 5, "cancelled")]


async def test_a_caller_cancelled_while_reserving_holds_nothing(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, tokens_per_minute=60)
    for num_turns in range(40):  # wherever it stands when the client leaves
        reserving = asyncio.create_task(reserve(metering, customer.caller, prompt=30, output=30))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        reserving.cancel()
        answers = await asyncio.gather(reserving, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Reservation):
                await metering.settle(answer, NOTHING_USED, Outcome.CANCELLED)
    await metering.stop()
    assert value(database_url, NUM_LIVE) == 0
    assert value(database_url, AVAILABLE) == pytest.approx(60)


async def test_a_store_that_is_away_refuses_rather_than_serves_unmetered(
    database: Database, metering: Metering, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database)
    store_switch.off()
    with pytest.raises(StoreUnavailable) as caught:
        await reserve(metering, customer.caller)
    store_switch.on()
    assert caught.value.retry_after_seconds is not None


async def test_settling_waits_for_a_store_that_is_away(
    database: Database, metering: Metering, database_url: str, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database)
    reservation = await reserve(metering, customer.caller)
    store_switch.off()
    settling = asyncio.create_task(metering.settle(reservation, used(10, 20), Outcome.FINISHED))
    with pytest.raises(StoreUnavailable):
        await reserve(metering, customer.caller)
    assert not settling.done()
    store_switch.on()
    await settling
    assert value(database_url, NUM_LIVE) == 0
    assert rows(database_url, LEDGER) == [(reservation.request_id, 10, 20, "finished")]


async def test_a_lowered_limit_binds_the_next_request(database: Database, metering: Metering) -> None:
    customer = await make_customer(database, concurrent_requests=5)
    await reserve(metering, customer.caller)
    await set_limits(database, "test", customer.tenant.id, TenantLimits(concurrent_requests=1))
    with pytest.raises(LimitReached):
        await reserve(metering, customer.caller)


async def test_concurrency_in_use_is_shown_per_tenant(database: Database, metering: Metering) -> None:
    busy, idle = await make_customer(database, "busy"), await make_customer(database, "idle")
    await reserve(metering, busy.caller)
    assert (await get_tenant(database, "busy")).num_live_requests == 1
    assert (await get_tenant(database, idle.tenant.id)).num_live_requests == 0


async def test_one_tenant_at_its_limit_does_not_hold_up_another(
    database: Database, metering: Metering
) -> None:
    full = await make_customer(database, "full", concurrent_requests=0)
    other = await make_customer(database, "other")
    full_answer, other_answer = await asyncio.gather(
        reserve(metering, full.caller), reserve(metering, other.caller), return_exceptions=True
    )
    assert isinstance(full_answer, LimitReached)
    assert isinstance(other_answer, Reservation)


async def test_a_request_id_used_twice_fails_alone(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database)
    await reserve(metering, customer.caller, request_id="same")
    answers = await asyncio.gather(
        reserve(metering, customer.caller, request_id="same"),
        *(reserve(metering, customer.caller) for _ in range(5)),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, Reservation) for answer in answers) == 5
    assert value(database_url, NUM_LIVE) == 6


async def test_stopping_stores_what_is_still_to_be_settled(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database)
    reservations = await reserve_many(metering, customer.caller, num_requests=20)
    for reservation in reservations:
        settling = asyncio.create_task(metering.settle(reservation, used(1, 1), Outcome.FINISHED))
        await asyncio.sleep(0)
        settling.cancel()
    await metering.stop()
    assert value(database_url, NUM_LIVE) == 0
    assert value(database_url, "SELECT count(*) FROM replica") == 0


class Reports:
    """What engines say of a life that ended, and when they were asked."""

    def __init__(self, usage: Mapping[str, Usage]) -> None:
        self._usage = usage
        self.asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def usage_of(self, epoch: int) -> Mapping[str, Usage]:
        if not self.asked.done():
            self.asked.set_result(epoch)
        return self._usage


async def let_die(metering: Metering) -> None:
    """Its heart stops; nothing it holds is given back."""
    await metering._heartbeat.stop(holds_nothing=False)


async def test_a_dead_replica_is_swept_by_another(database: Database, database_url: str) -> None:
    customer = await make_customer(database, concurrent_requests=2, tokens_per_minute=1_000)
    dying = Metering(database, "dying")
    await dying.start()
    known = await reserve(dying, customer.caller)
    unknown = await reserve(dying, customer.caller)
    reports = Reports({known.request_id: used(10, 3)})
    survivor = Metering(database, "survivor", reports.usage_of, beat_seconds=0.05, dead_after_seconds=0.5)
    await survivor.start()
    await let_die(dying)
    assert await reports.asked == dying.epoch
    await until_value(database_url, NUM_LIVE, 0)
    await survivor.stop()
    assert sorted(rows(database_url, LEDGER)) == sorted(
        [(known.request_id, 10, 3, "lost"), (unknown.request_id, 0, 0, "lost")]
    )
    assert value(database_url, AVAILABLE) == pytest.approx(1_000 - 13 - 30, abs=17)


async def test_the_truth_replaces_what_was_given_up_as_lost(database: Database, database_url: str) -> None:
    customer = await make_customer(database)
    slow = Metering(database, "slow")
    await slow.start()
    reservation = await reserve(slow, customer.caller)
    await let_die(slow)
    survivor = Metering(database, "survivor", beat_seconds=0.05, dead_after_seconds=0.5)
    await survivor.start()
    await until_value(database_url, NUM_LIVE, 0)
    await survivor.stop()
    await slow.settle(reservation, used(10, 20), Outcome.FINISHED)
    assert rows(database_url, LEDGER) == [(reservation.request_id, 10, 20, "finished")]


async def test_after_an_outage_nobody_is_swept_who_lives(
    database: Database, database_url: str, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database)
    replicas = [
        Metering(database, name, beat_seconds=0.05, dead_after_seconds=1.0) for name in ("one", "two")
    ]
    for replica in replicas:
        await replica.start()
        await reserve(replica, customer.caller)
    store_switch.off()
    await asyncio.sleep(1.2)  # the outage itself: longer than a heart may pause
    store_switch.on()
    await until_value(
        database_url, "SELECT count(*) FROM replica WHERE heartbeat_at > now() - interval '1 second'", 2
    )
    await asyncio.sleep(0.5)  # a hasty judge would have swept by now
    assert value(database_url, NUM_LIVE) == 2
    for replica in replicas:
        await replica.stop()


async def test_no_two_lives_have_the_same_epoch(database: Database) -> None:
    lives = [Metering(database, "same") for _ in range(3)]
    for life in lives:
        await life.start()
    assert len({life.epoch for life in lives}) == 3
    for life in lives:
        await life.stop()
