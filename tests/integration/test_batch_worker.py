"""Lines of batches, run by real workers on a scripted engine: recorded and charged once, within a budget."""

import asyncio
import json
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from engine.runner.scripted_runner import ScriptedRunner, letters
from gateway.batch_item import ItemRunner
from gateway.batch_worker import BEGUN_AT_ONCE
from gateway.batches.status import BatchStatus, EndsAs
from gateway.db import Database
from gateway.files.local_store import LocalFileStore
from gateway.key_administration import issue_key
from gateway.quotas.limits import QuotaKind, Scope
from tests.builders.batch_workers import body, running_worker, submit
from tests.builders.batches import lease
from tests.builders.engine_messages import engine_description
from tests.builders.scripted_engine import LIMITS, ScriptedEngine, scripted_engine
from tests.builders.store import PEPPER, limit_tenant, make_customer
from tests.builders.store_rows import rows, until_rows, until_value, value

pytestmark = pytest.mark.postgres

STATES = "SELECT state, count(*)::int FROM batch_item GROUP BY 1 ORDER BY 1"
RESULTS = "SELECT line, body FROM batch_result ORDER BY line"
COUNTS = "SELECT num_completed, num_failed, prompt_tokens::int, completion_tokens::int FROM batch"
CHARGED = "SELECT count(*)::int, sum(prompt_tokens)::int, sum(completion_tokens)::int FROM usage_event"
LEASED = "SELECT count(*)::int FROM batch_item WHERE state = 'leased'"
MANY_LEASED = "SELECT count(*) > 10 FROM batch_item WHERE state = 'leased'"
HELD_UP = "SELECT count(*) > 0 FROM batch_item WHERE not_before > now()"
NUM_DONE = "SELECT count(*)::int FROM batch_result"


@pytest.fixture
def files(tmp_path: Path) -> LocalFileStore:
    return LocalFileStore(tmp_path / "files")


@pytest.fixture
async def engine() -> ScriptedEngine:
    async with scripted_engine(engine_description().tokenizer_json) as running:
        yield running


async def test_every_line_is_answered_recorded_and_charged_once(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    customer = await make_customer(database)
    await submit(database, customer, files, [body(f"number {n}") for n in range(50)])
    async with running_worker(database, files, engine):
        await until_value(database_url, NUM_DONE, 50, timeout_seconds=60)
    assert rows(database_url, STATES) == [("done", 50)]
    found = [(line, json.loads(str(result))) for line, result in rows(database_url, RESULTS)]
    assert [(line, result["custom_id"]) for line, result in found] == [(n, f"line-{n}") for n in range(1, 51)]
    assert all(result["response"]["status_code"] == 200 and result["error"] is None for _, result in found)
    answers = [result["response"]["body"] for _, result in found]
    assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"length"}
    assert all(len(answer["choices"][0]["message"]["content"]) == 4 for answer in answers)
    prompt_tokens = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert rows(database_url, CHARGED) == [(50, prompt_tokens, 200)]
    assert rows(database_url, COUNTS) == [(50, 0, prompt_tokens, 200)]


async def test_two_workers_share_a_batch_and_run_no_line_twice(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    customer = await make_customer(database)
    await submit(database, customer, files, [body() for _ in range(100)])
    async with running_worker(database, files, engine), running_worker(database, files, engine):
        await until_value(database_url, NUM_DONE, 100, timeout_seconds=60)
    assert value(database_url, "SELECT count(*)::int FROM usage_event") == 100
    assert value(database_url, "SELECT max(attempt) FROM batch_item") == 1


async def test_lines_are_begun_a_few_at_a_time_so_that_other_requests_get_their_turn(
    database: Database, database_url: str, files: LocalFileStore
) -> None:
    """Hundreds were begun in one turn of the loop: whoever used the same process waited for all of them."""
    customer = await make_customer(database)
    await submit(database, customer, files, [body() for _ in range(300)])
    limits = replace(LIMITS, max_num_seqs=200)
    async with (
        scripted_engine(engine_description().tokenizer_json, limits=limits) as engine,
        running_worker(database, files, engine),
    ):
        until_done = asyncio.create_task(until_value(database_url, NUM_DONE, 300, timeout_seconds=60))
        nums_begun = [num async for num in nums_begun_in_turns(until_done)]
        await until_done
    assert sum(nums_begun) == 300
    assert max(nums_begun) == BEGUN_AT_ONCE


async def nums_begun_in_turns(until: "asyncio.Task[None]") -> AsyncIterator[int]:
    """How many lines were begun in each turn of the loop."""
    known: weakref.WeakSet[asyncio.Task[object]] = weakref.WeakSet()
    while not until.done():
        tasks = {task for task in asyncio.all_tasks() if is_a_line(task)}
        yield len(tasks - set(known))
        known |= tasks
        await asyncio.sleep(0)


def is_a_line(task: "asyncio.Task[object]") -> bool:
    return getattr(task.get_coro(), "__qualname__", "") == ItemRunner.run.__qualname__


async def test_a_line_that_its_endpoint_refuses_has_its_error_as_its_answer(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    customer = await make_customer(database)
    await submit(database, customer, files, [body(), body("x" * 5_000), body() | {"model": "no such"}])
    async with running_worker(database, files, engine):
        await until_value(database_url, NUM_DONE, 3, timeout_seconds=60)
    results = [json.loads(str(result)) for _, result in rows(database_url, RESULTS)]
    assert [result["response"]["status_code"] for result in results] == [200, 400, 404]
    assert results[1]["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert rows(database_url, "SELECT is_error FROM batch_result ORDER BY line") == [
        (False,),
        (True,),
        (True,),
    ]
    assert rows(database_url, COUNTS)[0][:2] == (1, 2)
    assert value(database_url, "SELECT count(*)::int FROM usage_event") == 1


async def test_a_budget_that_runs_out_holds_the_lines_until_there_is_more(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 200})
    await submit(database, customer, files, [body() for _ in range(20)])
    async with running_worker(database, files, engine):
        await until_value(database_url, HELD_UP, True, timeout_seconds=60)
        await until_value(database_url, LEASED, 0, timeout_seconds=60)
        used = value(database_url, "SELECT sum(prompt_tokens + completion_tokens)::int FROM usage_event")
        assert isinstance(used, int)
        assert 100 < used <= 200
        assert value(database_url, "SELECT count(*)::int FROM batch_result WHERE is_error") == 0
        await limit_tenant(database, customer.tenant.id, QuotaKind.TOKENS_PER_DAY, 10_000)
        await until_value(database_url, NUM_DONE, 20, timeout_seconds=60)
    assert value(database_url, "SELECT max(attempt) FROM batch_item") == 1


async def test_an_answer_is_not_cut_short_for_want_of_budget(
    database: Database, database_url: str, files: LocalFileStore
) -> None:
    """Without `max_tokens` 256 tokens are paid for at first, and the rest is more than what is left."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 320})
    await submit(database, customer, files, [body(max_tokens=None)])
    longer = replace(LIMITS, max_output_len=400)
    async with (
        scripted_engine(engine_description().tokenizer_json, limits=longer) as engine,
        running_worker(database, files, engine) as running,
    ):
        await until_value(database_url, HELD_UP, True, timeout_seconds=60)
        assert value(database_url, NUM_DONE) == 0
        assert value(database_url, "SELECT count(*)::int FROM usage_event") == 0
        assert not running.metering.unrecorded_items()
        await limit_tenant(database, customer.tenant.id, QuotaKind.TOKENS_PER_DAY, None)
        await until_value(database_url, NUM_DONE, 1, timeout_seconds=60)
    assert rows(database_url, COUNTS)[0][3] == 400


async def test_answers_that_are_paid_for_in_parts_are_whole(
    database: Database, database_url: str, files: LocalFileStore
) -> None:
    """The engine joins tokens of many lines; none was paid for any more, and all ended by their time."""
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000_000})
    await submit(database, customer, files, [body(max_tokens=None) for _ in range(60)])
    longer = replace(LIMITS, max_output_len=400)
    async with (
        scripted_engine(engine_description().tokenizer_json, limits=longer, num_blocks=2_000) as engine,
        running_worker(database, files, engine),
    ):
        await until_value(database_url, NUM_DONE, 60, timeout_seconds=60)
    assert rows(database_url, COUNTS)[0][:2] == (60, 0)
    assert rows(database_url, COUNTS)[0][3] == 60 * 400


async def test_a_tenant_without_budget_keeps_nobody_elses_lines_waiting(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    broke = await make_customer(database, "broke", limits={QuotaKind.TOKENS_PER_DAY: 50})
    other = await make_customer(database, "other")
    await submit(database, broke, files, [body() for _ in range(100)])
    await submit(database, other, files, [body() for _ in range(30)])
    done = f"SELECT count(*)::int FROM batch_result WHERE tenant_id = '{other.tenant.id}'"
    async with running_worker(database, files, engine):
        await until_value(database_url, done, 30, timeout_seconds=60)  # type: ignore[arg-type]


async def test_a_key_without_budget_keeps_no_other_key_of_its_tenant_waiting(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    broke = await make_customer(database)
    issued = await issue_key(database, PEPPER, "test", broke.tenant.id, name="second")
    other = replace(broke, caller=replace(broke.caller, key=issued.key.id))
    await limit_tenant(
        database,
        broke.tenant.id,
        QuotaKind.TOKENS_PER_DAY,
        50,
        scope=Scope.KEY,
        scope_id=broke.caller.key,
    )
    soon = timedelta(hours=1)
    await submit(database, broke, files, [body() for _ in range(100)], expires_in=soon)
    batch = await submit(database, other, files, [body() for _ in range(30)])
    done = f"SELECT count(*)::int FROM batch_result WHERE batch_id = '{batch}'"
    async with running_worker(database, files, engine):
        await until_value(database_url, done, 30, timeout_seconds=60)  # type: ignore[arg-type]


async def test_what_a_tenant_did_not_get_is_not_counted_as_its_share(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 100})
    await submit(database, customer, files, [body() for _ in range(100)])
    async with running_worker(database, files, engine):
        await until_value(database_url, HELD_UP, True, timeout_seconds=60)
        await until_value(database_url, LEASED, 0, timeout_seconds=60)
    used = value(database_url, "SELECT coalesce(sum(prompt_tokens + completion_tokens), 0) FROM usage_event")
    assert value(database_url, "SELECT served FROM batch_share") == pytest.approx(float(str(used)))


async def test_lines_that_nobody_knows_to_be_leased_to_it_are_found_by_a_living_process(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    """The answer to a claim was lost, and its lines were leased as long as the process lived."""
    customer = await make_customer(database)
    async with running_worker(database, files, engine) as running:
        batch = await submit(
            database, customer, files, [body() for _ in range(5)], status=BatchStatus.VALIDATING
        )
        await lease(database, batch, [1, 2, 3], epoch=running.metering.epoch)
        async with database.system_transaction() as connection:
            await connection.execute(text("UPDATE batch SET status = 'in_progress'"))
        await until_value(database_url, NUM_DONE, 5, timeout_seconds=60)


async def test_limits_per_minute_and_slots_of_both_classes_are_for_people(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    customer = await make_customer(database, concurrent_requests=0, tokens_per_minute=1)
    await submit(database, customer, files, [body() for _ in range(10)])
    async with running_worker(database, files, engine):
        await until_value(database_url, NUM_DONE, 10, timeout_seconds=60)


async def test_what_runs_of_a_cancelled_batch_is_ended_and_charged_nothing(
    database: Database, database_url: str, files: LocalFileStore
) -> None:
    slow = ScriptedRunner(letters(ord("a"), 26), seconds_per_step=0.05)
    customer = await make_customer(database)
    async with scripted_engine(engine_description().tokenizer_json, runner=slow) as engine:
        batch = await submit(database, customer, files, [body(max_tokens=200) for _ in range(30)])
        async with running_worker(database, files, engine):
            await until_value(database_url, MANY_LEASED, True, timeout_seconds=60)
            async with database.system_transaction() as connection:
                await connection.execute(
                    text("UPDATE batch SET status = 'cancelling', ends_as = :ends"),
                    {"ends": EndsAs.CANCELLED},
                )
            await until_value(database_url, LEASED, 0, timeout_seconds=60)
    assert batch
    assert rows(database_url, STATES) == [("pending", 30)]
    assert value(database_url, "SELECT count(*)::int FROM usage_event") == 0


async def test_a_key_that_may_have_no_batches_run_any_more_holds_up_its_own_alone(
    database: Database, database_url: str, files: LocalFileStore, engine: ScriptedEngine
) -> None:
    barred = await make_customer(database)
    issued = await issue_key(database, PEPPER, "test", barred.tenant.id, name="second")
    other = replace(barred, caller=replace(barred.caller, key=issued.key.id))
    async with database.system_transaction() as connection:
        await connection.execute(
            text("UPDATE api_key SET scopes = '{inference}' WHERE id = :key"), {"key": barred.caller.key}
        )
    await submit(database, barred, files, [body()], expires_in=timedelta(hours=1))
    batch = await submit(database, other, files, [body() for _ in range(5)])
    done = f"SELECT count(*)::int FROM batch_result WHERE batch_id = '{batch}'"
    async with running_worker(database, files, engine):
        await until_value(database_url, done, 5, timeout_seconds=60)  # type: ignore[arg-type]
    assert value(database_url, NUM_DONE) == 5


async def test_a_worker_that_stops_gives_its_lines_back_at_once(
    database: Database, database_url: str, files: LocalFileStore
) -> None:
    slow = ScriptedRunner(letters(ord("a"), 26), seconds_per_step=0.05)
    customer = await make_customer(database, limits={QuotaKind.TOKENS_PER_DAY: 1_000_000})
    async with scripted_engine(engine_description().tokenizer_json, runner=slow) as engine:
        await submit(database, customer, files, [body(max_tokens=200) for _ in range(30)])
        async with running_worker(database, files, engine):
            await until_value(database_url, MANY_LEASED, True, timeout_seconds=60)
        assert rows(database_url, STATES) == [("pending", 30)]
        assert value(database_url, "SELECT max(attempt) FROM batch_item") == 0
        assert value(database_url, "SELECT coalesce(sum(granted), 0)::int FROM quota_lease") == 0
        async with running_worker(database, files, engine):
            await until_value(database_url, NUM_DONE, 30, timeout_seconds=60)


async def test_an_engine_that_is_lost_costs_no_line(
    database: Database, database_url: str, files: LocalFileStore
) -> None:
    slow = ScriptedRunner(letters(ord("a"), 26), seconds_per_step=0.02)
    customer = await make_customer(database)
    await submit(database, customer, files, [body(max_tokens=30) for _ in range(40)])
    async with scripted_engine(engine_description().tokenizer_json, runner=slow) as first:
        port = int(first.url.rsplit(":", 1)[1])
        async with running_worker(database, files, first) as running:
            await until_value(database_url, MANY_LEASED, True, timeout_seconds=60)
            await first.server.stop()
            async with scripted_engine(engine_description().tokenizer_json, port=port):
                await until_rows(database_url, STATES, [("done", 40)])
            del running
    assert value(database_url, "SELECT count(*)::int FROM usage_event") == 40


async def test_tenants_batches_get_tokens_by_weight(
    database: Database, database_url: str, files: LocalFileStore
) -> None:
    slow = ScriptedRunner(letters(ord("a"), 26), seconds_per_step=0.01)
    light, heavy = await make_customer(database, "light"), await make_customer(database, "heavy")
    async with database.system_transaction() as connection:
        await connection.execute(text("UPDATE tenant SET weight = 3 WHERE id = :id"), {"id": heavy.tenant.id})
    async with scripted_engine(engine_description().tokenizer_json, runner=slow) as engine:
        for customer in (light, heavy):
            await submit(database, customer, files, [body() for _ in range(600)])
        async with running_worker(database, files, engine):
            await until_value(
                database_url, "SELECT count(*) >= 400 FROM batch_result", True, timeout_seconds=60
            )
            by_tenant = dict(
                rows(database_url, "SELECT tenant_id, count(*)::int FROM batch_result GROUP BY 1")
            )
    assert 2.0 <= by_tenant[heavy.tenant.id] / by_tenant[light.tenant.id] <= 4.0, by_tenant
