"""Reserving and settling against a real store: never above a limit, never counted twice, never leaked."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.protocol import RequestClass, RequestRecord
from gateway.administration import get_tenant, set_limits
from gateway.db import Database
from gateway.engines.directory import LastRecords
from gateway.errors import InvalidRequest, LimitReached, StoreUnavailable
from gateway.keys.caller import Caller
from gateway.metering import (
    Metering,
)
from gateway.quotas import queries as quotas
from gateway.quotas.limits import QuotaKind, Scope, TenantLimits
from gateway.quotas.reservation import Demand, Reservation
from gateway.tenants.ids import KeyId
from gateway.usage.outcome import Outcome
from tests.builders.statements import counted_statements
from tests.builders.store import NOTHING_USED, limit_tenant, make_customer, reserve, used
from tests.builders.store_rows import rows, until_value, value
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

LENT = "SELECT coalesce(sum(granted), 0)::int FROM quota_lease"
LEFT = "SELECT (available + outstanding)::int FROM quota_bucket"
LEDGER = "SELECT request_id, prompt_tokens, completion_tokens, outcome FROM usage_event ORDER BY request_id"


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
    assert value(database_url, LENT) == 7


async def test_two_hundred_at_once_never_exceed_the_tokens(database: Database, metering: Metering) -> None:
    customer = await make_customer(database, tokens_per_minute=300)
    granted = await reserve_many(metering, customer.caller, num_requests=200)
    assert len(granted) == 10  # of 30 tokens each; a thirty-first token takes 0.2 s to refill


async def test_statements_do_not_grow_with_requests(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, tokens_per_minute=100_000_000)
    num_before = value(database_url, "SELECT sum(exchange_number)::int FROM replica")
    for _ in range(20):
        for reservation in await reserve_many(metering, customer.caller, num_requests=100):
            metering.settle(reservation, used(10, 20), Outcome.FINISHED)
    num_after = value(database_url, "SELECT sum(exchange_number)::int FROM replica")
    assert isinstance(num_before, int)
    assert isinstance(num_after, int)
    assert num_after - num_before < 20


async def test_hundreds_who_come_first_ask_for_the_limits_once(
    database: Database, metering: Metering
) -> None:
    """Each asked by itself: the pool ran dry, and the store looked as if it were away."""
    customer = await make_customer(database)
    with counted_statements() as statements:
        granted = await reserve_many(metering, customer.caller, num_requests=300)
    assert len(granted) == 300
    asked = [text for text in statements.texts if "FROM quota_limit" in text and "tenant_id =" in text]
    assert len(asked) == 1


async def test_a_refused_request_counts_nowhere(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(
        database, concurrent_requests=1, tokens_per_minute=1_000, limits={QuotaKind.REQUESTS_PER_MINUTE: 10}
    )
    live = await reserve(metering, customer.caller)
    with pytest.raises(LimitReached) as caught:
        await reserve(metering, customer.caller)
    assert caught.value.code == "concurrency_limit_exceeded"
    metering.settle(live, NOTHING_USED, Outcome.REFUSED)
    await metering.stop()
    left = rows(database_url, "SELECT available::int, outstanding::int FROM quota_bucket ORDER BY id")
    assert left == [(1, 0), (1_000, 0), (10, 0)]


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


async def test_a_request_over_a_days_budget_is_told_to_come_back_tomorrow(
    database: Database, metering: Metering
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 50})
    await reserve(metering, customer.caller)
    with pytest.raises(LimitReached, match=r"tokens per day \(TPD\): Limit 50, Used 30") as caught:
        await reserve(metering, customer.caller)
    seconds = value_of_day_left()
    assert caught.value.retry_after_seconds == pytest.approx(seconds, abs=5)
    assert caught.value.should_retry is (False if seconds > 120 else None)


def value_of_day_left() -> float:
    now = datetime.now(UTC)
    tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return (tomorrow - now).total_seconds()


async def test_a_request_over_the_whole_limit_is_told_not_to_retry(
    database: Database, metering: Metering
) -> None:
    customer = await make_customer(database, tokens_per_minute=60)
    with pytest.raises(LimitReached) as caught:
        await reserve(metering, customer.caller, prompt=61)
    assert (caught.value.should_retry, caught.value.retry_after_seconds) == (False, None)


async def test_an_answer_is_shortened_to_what_fits(database: Database, metering: Metering) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_MONTH: 100})
    reservation = await metering.reserve(
        request_id="short",
        caller=customer.caller,
        model="model",
        request_class=RequestClass.INTERACTIVE,
        demand=Demand(prompt_tokens=40, output_cap=500, output_floor=10),
    )
    assert reservation.paid_tokens == 60
    assert reservation.limited_by is not None
    assert reservation.limited_by.kind is QuotaKind.TOKENS_PER_MONTH


async def test_inputs_and_outputs_over_their_limits_are_the_callers_to_mend(
    database: Database, metering: Metering
) -> None:
    customer = await make_customer(
        database, limits={QuotaKind.INPUT_TOKENS: 100, QuotaKind.OUTPUT_TOKENS: 50}
    )
    with pytest.raises(InvalidRequest, match="at most 100"):
        await reserve(metering, customer.caller, prompt=101)
    with pytest.raises(InvalidRequest, match="at most 50"):
        await reserve(metering, customer.caller, output=51)
    await reserve(metering, customer.caller, prompt=100, output=50)


async def test_long_prompts_have_slots_of_their_own(database: Database, metering: Metering) -> None:
    customer = await make_customer(database, limits={QuotaKind.CONCURRENT_LONG_REQUESTS: 0})
    await reserve(metering, customer.caller)
    with pytest.raises(LimitReached, match="Long-context concurrency"):
        await metering.reserve(
            request_id="long",
            caller=customer.caller,
            model="model",
            request_class=RequestClass.INTERACTIVE,
            demand=Demand(prompt_tokens=5_000, output_cap=10, output_floor=10, is_long=True),
        )


async def test_settling_frees_the_slot_and_gives_unused_tokens_back(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=1, limits={QuotaKind.TOKENS_PER_DAY: 60})
    reservation = await reserve(metering, customer.caller, prompt=10, output=50)
    metering.settle(reservation, used(10, 20), Outcome.FINISHED)
    await reserve(metering, customer.caller, prompt=10, output=20)
    await until_value(database_url, LEFT + " ORDER BY id OFFSET 1", 30)
    assert rows(database_url, LEDGER) == [(reservation.request_id, 10, 20, "finished")]


async def test_settling_twice_counts_once(database: Database, metering: Metering, database_url: str) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 60})
    reservation = await reserve(metering, customer.caller)
    metering.settle(reservation, used(10, 20), Outcome.FINISHED)
    metering.settle(reservation, NOTHING_USED, Outcome.CANCELLED)
    await metering.stop()
    assert rows(database_url, LEDGER) == [(reservation.request_id, 10, 20, "finished")]
    assert value(database_url, LEFT) == 30


async def test_a_caller_cancelled_while_reserving_holds_nothing(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=1, limits={QuotaKind.TOKENS_PER_DAY: 60})
    for num_turns in range(40):  # wherever it stands when the client leaves
        reserving = asyncio.create_task(reserve(metering, customer.caller, prompt=30, output=30))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        reserving.cancel()
        answers = await asyncio.gather(reserving, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Reservation):
                metering.settle(answer, NOTHING_USED, Outcome.CANCELLED)
    await reserve(metering, customer.caller, prompt=30, output=30)
    assert value(database_url, LEFT + " ORDER BY id OFFSET 1") == 60


async def test_without_the_store_only_what_is_lent_is_spent(
    database: Database, metering: Metering, database_url: str, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database, tokens_per_minute=100_000)
    first = await reserve(metering, customer.caller)
    metering.settle(first, used(10, 20), Outcome.FINISHED)
    lent = value(database_url, LENT)
    store_switch.off()
    answers = [await _answer(metering, customer.caller) for _ in range(50)]
    store_switch.on()
    refused = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    assert refused
    assert all(error.retry_after_seconds for error in refused)
    assert isinstance(lent, int)
    assert (50 - len(refused)) * 30 <= lent


async def _answer(metering: Metering, caller: Caller) -> Reservation | StoreUnavailable:
    try:
        return await reserve(metering, caller)
    except StoreUnavailable as error:
        return error


async def test_what_is_settled_without_the_store_reaches_the_ledger_later(
    database: Database, metering: Metering, database_url: str, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database, tokens_per_minute=100_000)
    reservation = await reserve(metering, customer.caller)
    store_switch.off()
    metering.settle(reservation, used(10, 20), Outcome.FINISHED)
    await asyncio.sleep(0.5)
    store_switch.on()
    await until_value(database_url, "SELECT count(*) FROM usage_event", 1)
    assert rows(database_url, LEDGER) == [(reservation.request_id, 10, 20, "finished")]
    await reserve(metering, customer.caller)


async def test_a_lowered_limit_binds_within_two_seconds(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=5)
    await reserve_many(metering, customer.caller, num_requests=2)
    await set_limits(database, "test", customer.tenant.id, TenantLimits(concurrent_requests=1))
    await asyncio.sleep(1.5)
    with pytest.raises(LimitReached, match="Limit 1,"):
        await reserve(metering, customer.caller)


async def test_a_first_limit_and_a_lifted_one_bind_within_two_seconds(
    database: Database, metering: Metering
) -> None:
    customer = await make_customer(database)
    await reserve(metering, customer.caller)
    await limit_tenant(database, customer.tenant.id, QuotaKind.TOKENS_PER_DAY, 10)
    await asyncio.sleep(1.5)
    with pytest.raises(LimitReached):
        await reserve(metering, customer.caller)
    await limit_tenant(database, customer.tenant.id, QuotaKind.TOKENS_PER_DAY, None)
    await asyncio.sleep(1.5)
    await reserve(metering, customer.caller)


async def test_what_a_lifted_limit_had_counted_still_counts_when_it_comes_back(
    database: Database, metering: Metering
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 50})
    metering.settle(await reserve(metering, customer.caller), used(10, 20), Outcome.FINISHED)
    await asyncio.sleep(0.6)
    await limit_tenant(database, customer.tenant.id, QuotaKind.TOKENS_PER_DAY, None)
    await asyncio.sleep(1.2)
    await limit_tenant(database, customer.tenant.id, QuotaKind.TOKENS_PER_DAY, 50)
    await asyncio.sleep(1.2)
    with pytest.raises(LimitReached, match="Used 30"):
        await reserve(metering, customer.caller)


async def test_credit_that_is_idle_on_one_replica_is_another_ones_within_600_ms(
    database: Database, metering: Metering, database_url: str
) -> None:
    other = Metering(database, "replica-2")
    await other.start()
    customer = await make_customer(database, concurrent_requests=4, limits={QuotaKind.TOKENS_PER_DAY: 240})
    for reservation in await reserve_many(metering, customer.caller, num_requests=4):
        metering.settle(reservation, NOTHING_USED, Outcome.CANCELLED)
    await until_value(database_url, "SELECT min(idle)::int FROM quota_lease", 4)
    granted = await reserve_many(other, customer.caller, num_requests=4)
    assert len(granted) == 4
    await other.stop()


async def test_concurrency_in_use_is_shown_per_tenant(
    database: Database, metering: Metering, database_url: str
) -> None:
    busy, idle = await make_customer(database, "busy"), await make_customer(database, "idle")
    await reserve(metering, busy.caller)
    await until_value(database_url, "SELECT coalesce(sum(num_live), 0)::int FROM replica_load", 1)
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


async def test_a_pool_of_one_class_is_apart_from_the_other(database: Database, metering: Metering) -> None:
    customer = await make_customer(database)
    async with database.system_transaction() as connection:
        await quotas.save_limit(
            connection,
            tenant=customer.tenant.id,
            scope=Scope.PROJECT,
            scope_id=customer.caller.project,
            kind=QuotaKind.CONCURRENT_REQUESTS,
            model=None,
            request_class=RequestClass.OFFLINE,
            value=0,
        )
    await reserve(metering, customer.caller)
    with pytest.raises(LimitReached, match="project "):
        await metering.reserve(
            request_id="offline",
            caller=customer.caller,
            model="model",
            request_class=RequestClass.OFFLINE,
            demand=Demand(prompt_tokens=1, output_cap=1, output_floor=1),
        )


async def test_what_one_request_was_promised_is_not_taken_by_another_meanwhile(
    database: Database, metering: Metering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key whose own limit is asked about for the first time, beside one that has all it needs here."""
    customer = await make_customer(database, concurrent_requests=1)
    newcomer = replace(customer.caller, key=KeyId("newcomer"))
    await limit_tenant(
        database, newcomer.tenant, QuotaKind.TOKENS_PER_DAY, 1_000, scope=Scope.KEY, scope_id=newcomer.key
    )
    metering.settle(await reserve(metering, customer.caller), NOTHING_USED, Outcome.CANCELLED)
    save = quotas.save

    async def save_slowly(*arguments: Any, **named: Any) -> None:
        await asyncio.sleep(0.1)
        await save(*arguments, **named)

    monkeypatch.setattr(quotas, "save", save_slowly)
    first = asyncio.create_task(reserve(metering, newcomer))
    await asyncio.sleep(0.08)
    others = await reserve_many(metering, customer.caller, num_requests=3)
    assert isinstance(await first, Reservation)
    assert others == []


async def test_stopping_stores_what_is_still_to_be_told(
    database: Database, metering: Metering, database_url: str
) -> None:
    customer = await make_customer(database, tokens_per_minute=100_000)
    for reservation in await reserve_many(metering, customer.caller, num_requests=20):
        metering.settle(reservation, used(1, 1), Outcome.FINISHED)
    await metering.stop()
    assert value(database_url, "SELECT count(*) FROM usage_event") == 20
    for table in ("replica", "quota_lease", "replica_load"):
        assert value(database_url, f"SELECT count(*) FROM {table}") == 0  # type: ignore[arg-type]


# --- lives that end ----------------------------------------------------------------------------------------


async def let_die(metering: Metering) -> None:
    """Its tasks stop and its lock goes; nothing is told or given back."""
    await metering._stop_tasks()
    await metering._life.let_go()


def records(*reservations: Reservation, completion: int, is_complete: bool = True) -> LastRecords:
    return LastRecords(
        records=tuple(
            RequestRecord(id=one.request_id, usage=used(10, completion), account=one.account)
            for one in reservations
        ),
        is_complete=is_complete,
    )


async def survivor_of(database: Database, last: LastRecords) -> Metering:
    async def end_life(_: int) -> LastRecords:
        return last

    survivor = Metering(database, "survivor", end_life, sweep_seconds=0.05, dead_after_seconds=0.5)
    await survivor.start()
    return survivor


async def test_a_dead_replica_is_charged_by_the_engines_records_and_the_rest_comes_back(
    database: Database, database_url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=2, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    dying = Metering(database, "dying")
    await dying.start()
    told = await reserve(dying, customer.caller)
    dying.settle(told, used(10, 1), Outcome.FINISHED)
    await until_value(database_url, "SELECT count(*) FROM usage_event", 1)
    known = await reserve(dying, customer.caller)
    await let_die(dying)
    survivor = await survivor_of(database, records(told, known, completion=3))
    await until_value(database_url, "SELECT count(*) FROM replica", 1)
    assert rows(database_url, "SELECT completion_tokens, outcome FROM usage_event ORDER BY 1") == [
        (1, "finished"),
        (3, "lost"),
    ]
    assert rows(database_url, "SELECT available::int, outstanding::int FROM quota_bucket ORDER BY id") == [
        (2, 0),
        (1_000 - 11 - 13, 0),
    ]
    await survivor.stop()


async def test_while_an_engine_is_silent_credit_stays_in_doubt_and_slots_are_free(
    database: Database, database_url: str
) -> None:
    customer = await make_customer(database, concurrent_requests=1, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    dying = Metering(database, "dying")
    await dying.start()
    known = await reserve(dying, customer.caller)
    await let_die(dying)  # first: while it lives it may borrow ahead
    lent = value(database_url, LENT + " WHERE bucket_id = (SELECT max(id) FROM quota_bucket)")
    survivor = await survivor_of(database, records(known, completion=3, is_complete=False))
    await until_value(database_url, "SELECT available::int FROM quota_bucket ORDER BY id LIMIT 1", 1)
    assert isinstance(lent, int)
    assert value(database_url, LENT) == lent - 13
    await reserve(survivor, customer.caller)
    await survivor.stop()


async def test_a_process_taken_for_dead_is_told_so(database: Database, database_url: str) -> None:
    ended = asyncio.Event()
    slow = Metering(database, "slow", on_ended=ended.set)
    await slow.start()
    async with database.system_transaction() as connection:
        await quotas.end_life(connection, epoch=slow.epoch)
    async with asyncio.timeout(5):
        await ended.wait()
    await slow.stop()


async def test_after_an_outage_nobody_is_swept_who_lives(
    database: Database, database_url: str, store_switch: StoreSwitch
) -> None:
    customer = await make_customer(database, concurrent_requests=2)
    replicas = [
        Metering(database, name, sweep_seconds=0.05, dead_after_seconds=1.0) for name in ("one", "two")
    ]
    for replica in replicas:
        await replica.start()
        await reserve(replica, customer.caller)
    store_switch.off()
    await asyncio.sleep(1.2)  # the outage itself: longer than a life may be silent
    store_switch.on()
    await until_value(
        database_url, "SELECT count(*) FROM replica WHERE heartbeat_at > now() - interval '1 second'", 2
    )
    await asyncio.sleep(1.5)  # a hasty judge would have swept by now
    assert value(database_url, LENT) == 2
    assert value(database_url, "SELECT count(*) FROM replica WHERE fenced_at IS NULL") == 2
    for replica in replicas:
        await replica.stop()


async def test_no_two_lives_have_the_same_epoch(database: Database) -> None:
    lives = [Metering(database, "same") for _ in range(3)]
    for life in lives:
        await life.start()
    assert len({life.epoch for life in lives}) == 3
    for life in lives:
        await life.stop()
