"""A limit that is saved is enforced, once, for everybody it names, and as soon as its time comes again."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import product

import psycopg
import pytest
from psycopg import sql

from engine.protocol import RequestClass
from gateway.db import Database
from gateway.errors import GatewayError, InvalidRequest, LimitReached, StoreUnavailable
from gateway.metering import Metering
from gateway.quotas.limits import COUNTING, Counting, QuotaKind, Scope
from gateway.quotas.reservation import Demand
from gateway.tenants.ids import KeyId, ProjectId
from gateway.usage.outcome import Outcome
from tests.builders.bodies import chat_body
from tests.builders.engine_messages import engine_description
from tests.builders.store import Customer, limit_tenant, make_customer, reserve, used
from tests.builders.store_rows import rows, until_value, value
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer
from tests.fixtures_postgres import StoreSwitch

pytestmark = pytest.mark.postgres

CHAT = "/v1/chat/completions"
OF_REQUESTS = [kind for kind in QuotaKind if COUNTING[kind] is not Counting.LEVEL]
WORDS = {Scope.TENANT: "organization acme-tenant", Scope.PROJECT: "project ", Scope.KEY: "API key "}


@pytest.fixture
async def engine() -> AsyncIterator[WebSocketEngine]:
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def url(database_url: str, engine: WebSocketEngine) -> AsyncIterator[str]:
    async with stored_gateway(database_url, engine) as url:
        yield url


# --- every limit binds -------------------------------------------------------------------------------------


def scope_ids(customer: Customer) -> dict[Scope, str]:
    caller = customer.caller
    return {Scope.TENANT: caller.tenant, Scope.PROJECT: caller.project, Scope.KEY: caller.key}


async def refusal_of(metering: Metering, customer: Customer, *, num_requests: int) -> GatewayError | None:
    """Of the first that is refused."""
    try:
        for number in range(num_requests):
            await metering.reserve(
                request_id=f"{customer.tenant.id}-{number}",
                caller=customer.caller,
                model="model",
                request_class=RequestClass.INTERACTIVE,
                demand=Demand(prompt_tokens=9, output_cap=9, output_floor=9, is_long=True),
            )
    except (LimitReached, InvalidRequest) as refusal:
        return refusal
    return None


async def test_no_budget_is_saved_and_not_enforced(database: Database, metering: Metering) -> None:
    """B11: each kind of limit at each level, and nobody beside it.

    What is stored and what is enqueued bind where they are added to: test_filing, test_batch_intake.
    """
    for scope, kind in product(Scope, OF_REQUESTS):
        customer = await make_customer(database, f"acme-{scope}-{kind}")
        scope_id = scope_ids(customer)[scope]
        await limit_tenant(database, customer.tenant.id, kind, 1, scope=scope, scope_id=scope_id)
        refusal = await refusal_of(metering, customer, num_requests=2)
        assert refusal is not None, f"{kind} of a {scope} binds nobody"
        assert WORDS[scope] in refusal.message
    assert await refusal_of(metering, await make_customer(database, "another"), num_requests=2) is None


async def test_a_budget_of_one_key_is_no_budget_of_its_tenant(database: Database, metering: Metering) -> None:
    customer = await make_customer(database)
    await limit_tenant(
        database,
        customer.tenant.id,
        QuotaKind.TOKENS_PER_DAY,
        30,
        scope=Scope.KEY,
        scope_id=customer.caller.key,
    )
    await reserve(metering, customer.caller)
    with pytest.raises(LimitReached):
        await reserve(metering, customer.caller)
    await reserve(metering, replace(customer.caller, key=KeyId("another"), project=ProjectId("another")))


# --- time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "unit"), [(QuotaKind.TOKENS_PER_DAY, "day"), (QuotaKind.TOKENS_PER_MONTH, "month")]
)
async def test_a_budget_is_whole_again_in_its_next_window_though_nothing_resets_it(
    database: Database, database_url: str, kind: QuotaKind, unit: str
) -> None:
    """B10: the window is a part of the row's name; a new one begins full, whoever asks first."""
    customer = await make_customer(database, limits={kind: 30})
    today, tomorrow = Metering(database, "today"), Metering(database, "tomorrow")
    await today.start()
    today.settle(await reserve(today, customer.caller), used(10, 20), Outcome.FINISHED)
    with pytest.raises(LimitReached):
        await reserve(today, customer.caller)
    await today.stop()
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE quota_bucket SET window_start = window_start - %s::interval", [f"1 {unit}"]
        )
    await tomorrow.start()
    await reserve(tomorrow, customer.caller)
    await tomorrow.stop()
    assert rows(database_url, "SELECT available::int FROM quota_bucket ORDER BY id") == [(0,), (0,)]


async def test_limits_that_nobody_uses_cost_no_tick_anything(
    database: Database, metering: Metering, database_url: str
) -> None:
    """B16: a sweep over all limits, every tick. Only buckets of the busy are looked at."""
    for number in range(20):
        idle = await make_customer(database, f"idle-{number}", tokens_per_minute=1_000)
        metering.settle(await reserve(metering, idle.caller), used(1, 1), Outcome.FINISHED)
    busy = await make_customer(database, "busy", tokens_per_minute=100_000)
    await until_value(database_url, "SELECT count(*) FROM quota_lease", 0)
    looked_at = "SELECT xmin::text, id FROM quota_bucket ORDER BY id"
    before = rows(database_url, looked_at)
    num_exchanges = "SELECT exchange_number::int FROM replica"
    first = value(database_url, num_exchanges)
    for _ in range(10):
        metering.settle(await reserve(metering, busy.caller), used(1, 1), Outcome.FINISHED)
        await asyncio.sleep(0.1)
    assert isinstance(first, int)
    last = value(database_url, num_exchanges)
    assert isinstance(last, int)
    assert last > first + 2
    assert rows(database_url, looked_at)[: len(before)] == before


# --- what is asked and what is left ------------------------------------------------------------------------


async def test_the_first_request_of_a_small_limit_is_not_refused_for_an_estimate(
    database: Database, engine: WebSocketEngine, url: str
) -> None:
    """B4: without a length of its own the answer gets what there is."""
    customer = await make_customer(database, tokens_per_minute=50)
    async with client_of(url, customer.secret) as client:
        response = await client.post(CHAT, json=chat_body())
    assert response.status_code == 200, response.text
    (request,) = engine.received
    assert 0 < request.paid_tokens == 50 - len(request.prompt_ids)


async def test_the_cap_that_is_reserved_is_the_cap_that_is_generated(
    database: Database, engine: WebSocketEngine, url: str
) -> None:
    """B5: one token was reserved where ten thousand were generated."""
    customer = await make_customer(database, tokens_per_minute=60)
    async with client_of(url, customer.secret) as client:
        both = chat_body(max_tokens=1, max_completion_tokens=100)
        assert (await client.post(CHAT, json=both)).status_code == 429
        assert engine.received == []
        both = chat_body(max_tokens=100, max_completion_tokens=7)
        assert (await client.post(CHAT, json=both)).status_code == 200
    (request,) = engine.received
    assert request.sampling.max_tokens == 7


async def test_what_remains_is_less_by_what_is_reserved_and_not_only_by_what_is_used(
    database: Database, metering: Metering
) -> None:
    """B13: a header that stood still while many ran."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000})
    left = []
    for _ in range(3):
        reservation = await reserve(metering, customer.caller)
        assert reservation.tokens is not None
        left.append(reservation.tokens.remaining)
    assert left == [970, 940, 910]


@pytest.mark.parametrize("num_replicas", [3])
async def test_what_is_left_is_for_whichever_replica_asks(database: Database, num_replicas: int) -> None:
    """B14: what replicas had borrowed ahead starved the others at a small limit."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 300})
    replicas = [Metering(database, f"replica-{number}") for number in range(num_replicas)]
    for replica in replicas:
        await replica.start()
    for turn in range(10):
        replica = replicas[turn % num_replicas]
        replica.settle(await reserve(replica, customer.caller), used(10, 20), Outcome.FINISHED)
    for replica in replicas:
        with pytest.raises(LimitReached):
            await reserve(replica, customer.caller)
        await replica.stop()


async def test_an_error_of_the_store_lets_nobody_in_unmetered(
    database: Database, database_url: str, engine: WebSocketEngine, url: str
) -> None:
    """B8: "fail closed" that let everybody in. D5: nor is it ever the key's fault."""
    for table in ("quota_lease", "quota_bucket", "quota_limit", "api_key"):
        customer = await make_customer(
            database, f"without-{table}".replace("_", "-"), tokens_per_minute=1_000
        )
        async with renamed(database_url, table), client_of(url, customer.secret) as client:
            response = await client.post(CHAT, json=chat_body())
        assert response.status_code == 503, (table, response.text)
        assert response.json()["error"]["code"] == "store_unavailable"
        assert int(response.headers["retry-after"]) >= 1
    assert engine.received == []


@asynccontextmanager
async def renamed(url: str, table: str) -> AsyncIterator[None]:
    """The store answers, with an error. It waits for transactions of the gateway, which go on meanwhile."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        name = sql.Identifier(table)
        await connection.execute(sql.SQL("ALTER TABLE {} RENAME TO away").format(name))
        yield
        await connection.execute(sql.SQL("ALTER TABLE away RENAME TO {}").format(name))


async def test_a_store_that_is_away_makes_no_fresh_limits_and_is_seen_to_be_away(
    database: Database, store_switch: StoreSwitch
) -> None:
    """A7: each process went on with a whole limit of its own."""
    answered: list[bool] = []
    replicas = [Metering(database, name, on_store_answer=answered.append) for name in ("one", "two")]
    customer = await make_customer(database, concurrent_requests=4, limits={QuotaKind.TOKENS_PER_DAY: 300})
    for replica in replicas:
        await replica.start()
        await reserve(replica, customer.caller)
    store_switch.off()
    num_let_in = 2
    for replica in replicas:
        for _ in range(20):
            with suppress(StoreUnavailable, LimitReached):
                await reserve(replica, customer.caller)
                num_let_in += 1
    assert num_let_in <= 4
    assert answered[-1] is False
    store_switch.on()
    async with asyncio.timeout(10):
        while not answered[-1]:  # noqa: ASYNC110 - a list of what was told has no event
            await asyncio.sleep(0.05)
    for replica in replicas:
        await replica.stop()


# --- the headers -------------------------------------------------------------------------------------------


async def test_headers_show_the_limit_that_binds_this_key_and_fall_with_every_request(
    database: Database, url: str
) -> None:
    """F1: those of somebody else's limit, or none."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 10_000})
    await limit_tenant(
        database,
        customer.tenant.id,
        QuotaKind.TOKENS_PER_DAY,
        500,
        scope=Scope.KEY,
        scope_id=customer.caller.key,
    )
    left = []
    async with client_of(url, customer.secret) as client:
        for _ in range(5):
            headers = (await client.post(CHAT, json=chat_body(max_tokens=5))).headers
            assert headers["x-ratelimit-scope-tokens"] == "key/tokens_per_day"
            assert headers["x-ratelimit-limit-tokens"] == "500"
            left.append(int(headers["x-ratelimit-remaining-tokens"]))
    assert left == sorted(left, reverse=True)
    assert left[0] > left[-1]


COUNTED = [
    QuotaKind.REQUESTS_PER_MINUTE,
    QuotaKind.TOKENS_PER_MINUTE,
    QuotaKind.TOKENS_PER_DAY,
    QuotaKind.TOKENS_PER_MONTH,
]


async def test_no_429_is_without_a_time_to_try_again_and_a_long_wait_says_do_not(
    database: Database, url: str
) -> None:
    """F2, F4: clients obey two minutes at most, so a longer time comes with `x-should-retry: false`."""
    for kind in COUNTED:
        customer = await make_customer(database, f"acme-{kind}".replace("_", "-"))
        limit = 1 if kind is QuotaKind.REQUESTS_PER_MINUTE else 40
        await limit_tenant(database, customer.tenant.id, kind, limit)
        async with client_of(url, customer.secret) as client:
            answers = [await client.post(CHAT, json=chat_body(max_tokens=9)) for _ in range(3)]
        refused = answers[-1]
        assert refused.status_code == 429, (kind, refused.text)
        assert re.fullmatch(r"[1-9]\d*", refused.headers["retry-after"])
        seconds = int(refused.headers["retry-after"])
        assert seconds - 1 <= int(refused.headers["retry-after-ms"]) / 1000 <= seconds
        assert (refused.headers.get("x-should-retry") == "false") is (seconds > 120)
