"""Validators as processes of their own: what they find is stored, and no batch is lost with one."""

import asyncio
import os
import signal
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from gateway import batch_intake
from gateway.batch_intake import Ticket
from gateway.batch_validation import Rules
from gateway.batch_validator import DATABASE_URL, Job, framed
from gateway.batches.batch import Batch
from gateway.batches.status import BatchStatus
from gateway.db import Database
from gateway.key_administration import change_key
from tests.builders.batch_input import chat_line
from tests.builders.batch_orders import Orders, running_validators, until_validating, validator_pids
from tests.builders.store import Customer, make_customer
from tests.builders.store_rows import rows, until_value, value

pytestmark = pytest.mark.postgres


@pytest.fixture
def orders(database: Database, tmp_path: Path) -> Orders:
    return Orders(database, tmp_path)


@pytest.fixture
async def customer(database: Database) -> Customer:
    return await make_customer(database)


async def test_a_batch_is_validated_line_by_line(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    lines = [chat_line(f"line-{number}") for number in range(6_000)]
    batch = await orders.order(customer, b"\n".join(lines) + b"\n")
    async with running_validators(database, database_url, orders.directory):
        found = await orders.until(customer, batch, BatchStatus.IN_PROGRESS)
    assert (found.model, found.num_items) == ("tiny", 6_000)
    stored = rows(database_url, "SELECT custom_id, first_byte, num_bytes FROM batch_item ORDER BY line")
    starts = accumulate((len(line) + 1 for line in lines[:-1]), initial=0)
    assert stored == [
        (f"line-{number}", start, len(line))
        for number, (start, line) in enumerate(zip(starts, lines, strict=True))
    ]
    assert value(database_url, "SELECT sum(prompt_tokens)::int FROM batch_item") == found.enqueued_tokens


async def test_what_is_wrong_with_a_file_is_told(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, chat_line() + b"\n{\n")
    async with running_validators(database, database_url, orders.directory):
        await until_value(database_url, "SELECT status FROM batch", "failed")
    (fault,) = (await orders.now(customer, batch)).faults
    assert (fault.code, fault.line) == ("invalid_json_line", 2)
    assert value(database_url, "SELECT count(*) FROM batch_item") == 0


async def test_a_model_that_the_key_may_not_use_is_not_found(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    await change_key(database, "test", customer.caller.key, {"models": ("another",)})
    batch = await orders.order(customer, chat_line())
    async with running_validators(database, database_url, orders.directory):
        await until_value(database_url, "SELECT status FROM batch", "failed")
    assert [fault.code for fault in (await orders.now(customer, batch)).faults] == ["model_not_found"]


async def test_a_file_whose_content_is_gone_is_told(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, chat_line())
    (orders.directory / batch.input_blob).unlink()
    async with running_validators(database, database_url, orders.directory):
        await until_value(database_url, "SELECT status FROM batch", "failed")
    assert [fault.code for fault in (await orders.now(customer, batch)).faults] == ["file_not_found"]


async def test_a_batch_whose_validator_is_killed_is_given_to_another(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order_endless(customer)
    async with running_validators(database, database_url, orders.directory):
        pid = await until_validating()
        orders.make_endable(batch, chat_line())
        os.kill(pid, signal.SIGKILL)
        assert (await orders.until(customer, batch, BatchStatus.IN_PROGRESS)).num_items == 1


async def test_a_batch_that_kills_every_validator_fails(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order_endless(customer)
    async with running_validators(database, database_url, orders.directory):
        killed: frozenset[int] = frozenset()
        for _ in range(3):
            pid = await until_validating(other_than=killed)
            os.kill(pid, signal.SIGKILL)
            killed |= {pid}
        await until_value(database_url, "SELECT status FROM batch", "failed")
    assert [fault.code for fault in (await orders.now(customer, batch)).faults] == ["server_error"]


async def test_a_cancelled_batch_is_validated_no_longer(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order_endless(customer)
    async with running_validators(database, database_url, orders.directory):
        await until_validating()
        await batch_intake.cancel(database, customer.caller, batch.id)
        await until_no_validator()
        next_one = await orders.order(customer, chat_line())
        await orders.until(customer, next_one, BatchStatus.IN_PROGRESS)
    assert (await orders.now(customer, batch)).status == "cancelling"


async def test_a_batch_that_takes_long_does_not_hold_up_the_others(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    endless = await orders.order_endless(customer)
    async with running_validators(database, database_url, orders.directory):
        await until_validating()
        for _ in range(2):
            small = await orders.order(customer, chat_line())
            await orders.until(customer, small, BatchStatus.IN_PROGRESS)
    assert (await orders.now(customer, endless)).status == "validating"


async def test_one_tenants_large_files_hold_up_nobody_else(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    endless = [await orders.order_endless(customer) for _ in range(3)]
    other = await make_customer(database, "other")
    async with running_validators(database, database_url, orders.directory):
        await until_validating(num=2)
        small = await orders.order(other, chat_line())
        await orders.until(other, small, BatchStatus.IN_PROGRESS)
    assert {(await orders.now(customer, batch)).status for batch in endless} == {"validating"}


async def test_who_has_its_share_of_validators_goes_on_once_one_is_done(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    for _ in range(2):
        last = await orders.order_endless(customer)
    async with running_validators(database, database_url, orders.directory):
        await until_validating(num=2)
        small = await orders.order(customer, chat_line())
        await asyncio.sleep(0.5)
        assert (await orders.now(customer, small)).status == "validating"
        await batch_intake.cancel(database, customer.caller, last.id)
        await orders.until(customer, small, BatchStatus.IN_PROGRESS)


async def test_a_file_that_cannot_be_read_is_not_tried_again_at_once(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order(customer, chat_line())
    blob = orders.directory / batch.input_blob
    blob.unlink()
    blob.mkdir()  # what no disk reads
    async with running_validators(database, database_url, orders.directory):
        await until_validating()
        await until_no_validator()
        await asyncio.sleep(1)
        assert validator_pids() == []
        blob.rmdir()
        blob.write_bytes(chat_line())
        await orders.until(customer, batch, BatchStatus.IN_PROGRESS)


async def test_no_validator_outlives_its_gateway(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order_endless(customer)
    async with running_validators(database, database_url, orders.directory, epoch=1):
        await until_validating()
    assert validator_pids() == []
    orders.make_endable(batch, chat_line())
    async with running_validators(database, database_url, orders.directory, epoch=2):
        await orders.until(customer, batch, BatchStatus.IN_PROGRESS)


async def test_a_validator_ends_with_who_began_it_even_when_that_was_killed(
    database: Database, database_url: str, orders: Orders, customer: Customer
) -> None:
    batch = await orders.order_endless(customer)
    job = job_of(batch, orders.directory)
    validator = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway.batch_validator",
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, DATABASE_URL: database_url},
    )
    assert validator.stdin is not None
    validator.stdin.write(framed(job))
    await validator.stdin.drain()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(validator.wait(), timeout=2)
    validator.stdin.close()  # as the kernel does for whoever is killed
    async with asyncio.timeout(20):
        assert await validator.wait() == 1


def job_of(batch: Batch, directory: Path) -> Job:
    return Job(
        ticket=Ticket(
            batch=batch.id,
            tenant=batch.tenant,
            tenant_name="acme",
            project=batch.project,
            key=batch.key,
            epoch=1,
        ),
        rules=Rules(endpoint=batch.endpoint, max_lines=1, max_line_bytes=1),
        blob=batch.input_blob,
        models=[],
        files={"directory": str(directory)},
    )


async def until_no_validator() -> None:
    async with asyncio.timeout(20):
        while validator_pids():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
