"""`/v1/batches` over HTTP: the official client's calls, the published shape, and every refusal."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError
from sqlalchemy import update

from gateway.batches.ids import BatchId
from gateway.batches.status import BatchStatus
from gateway.batches.tables import batch as batches
from gateway.db import Database
from gateway.key_administration import issue_key
from gateway.keys.scope import ALL_SCOPES, Scope
from gateway.settings import FilesSection
from tests.builders.batch_input import CHAT, chat_line
from tests.builders.batches import finish_lines, make_batch
from tests.builders.engine_messages import engine_description
from tests.builders.files import upload
from tests.builders.http_clients import openai_client
from tests.builders.store import PEPPER, Customer, make_customer
from tests.builders.store_rows import until_value
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, hold

pytestmark = pytest.mark.postgres

FIELDS = """
    id object endpoint model errors input_file_id completion_window status output_file_id error_file_id
    created_at in_progress_at expires_at finalizing_at completed_at failed_at expired_at cancelling_at
    cancelled_at request_counts usage metadata
"""


@pytest.fixture
async def url(database_url: str, tmp_path: Path) -> AsyncIterator[str]:
    engine = WebSocketEngine(engine_description(), hold, secret=SHARED)
    await engine.start()
    async with stored_gateway(database_url, engine, files=FilesSection(directory=tmp_path)) as url:
        yield url
    await engine.stop()


@pytest.fixture
async def customer(database: Database) -> Customer:
    return await make_customer(database)


async def test_the_official_client_orders_finds_lists_and_cancels(
    database_url: str, url: str, customer: Customer
) -> None:
    async with openai_client(url, customer.secret) as client:
        stored = await client.files.create(file=("in.jsonl", chat_line()), purpose="batch")
        made = await client.batches.create(
            input_file_id=stored.id,
            endpoint=CHAT,
            completion_window="24h",
            metadata={"nightly": "yes"},
            output_expires_after={"anchor": "created_at", "seconds": 3_600},
        )
        assert (made.status, made.metadata, made.errors) == ("validating", {"nightly": "yes"}, None)
        assert made.expires_at == made.created_at + 24 * 3_600
        await until_value(database_url, "SELECT status FROM batch", "in_progress")
        found = await client.batches.retrieve(made.id)
        assert (found.model, found.request_counts.total) == ("tiny", 1)  # type: ignore[union-attr]
        others = [
            await client.batches.create(input_file_id=stored.id, endpoint=CHAT, completion_window="24h")
            for _ in range(2)
        ]
        listed = [batch.id async for batch in client.batches.list(limit=2)]
        assert listed == [others[1].id, others[0].id, made.id]
        cancelled = await client.batches.cancel(made.id)
        assert cancelled.status in ("cancelling", "cancelled")
        assert cancelled.cancelling_at is not None
        assert (await client.batches.cancel(made.id)).cancelling_at == cancelled.cancelling_at


async def test_what_is_wrong_with_the_file_is_found_in_the_batch(
    database_url: str, url: str, customer: Customer
) -> None:
    async with openai_client(url, customer.secret) as client:
        stored = await client.files.create(file=("in.jsonl", b"{\n"), purpose="batch")
        made = await client.batches.create(input_file_id=stored.id, endpoint=CHAT, completion_window="24h")
        await until_value(database_url, "SELECT status FROM batch", "failed")
        found = await client.batches.retrieve(made.id)
    assert found.failed_at is not None
    assert found.errors is not None
    assert found.errors.data is not None
    assert [(fault.code, fault.line) for fault in found.errors.data] == [("invalid_json_line", 1)]


async def test_a_batch_has_the_published_fields_in_their_order(
    database: Database, url: str, customer: Customer
) -> None:
    made = await make_batch(database, customer, num_items=3)
    await change(database, made, items_per_second=2.0, prompt_tokens=7, cached_tokens=4, completion_tokens=5)
    async with client_of(url, customer.secret) as client:
        response = await client.get(f"/v1/batches/{made}")
    shown = response.json()
    assert list(shown) == FIELDS.split()
    assert shown["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
    assert shown["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }
    assert {shown[name] for name in ("output_file_id", "errors", "failed_at", "metadata")} == {None}
    estimate = int(response.headers["x-sluice-batch-estimated-completion"])
    assert shown["created_at"] <= estimate <= shown["created_at"] + 30


@pytest.mark.parametrize("status", [BatchStatus.EXPIRED, BatchStatus.CANCELLED])
async def test_lines_that_were_not_run_are_failed_once_the_batch_has_ended(
    database: Database, url: str, customer: Customer, status: BatchStatus
) -> None:
    made = await make_batch(database, customer, num_items=5)
    await finish_lines(database, customer, made, [1, 2])
    await finish_lines(database, customer, made, [3], status=400)
    assert await counts(url, customer, made) == {"total": 5, "completed": 2, "failed": 1}
    await change(database, made, status=status.value)
    assert await counts(url, customer, made) == {"total": 5, "completed": 2, "failed": 3}


async def counts(url: str, customer: Customer, made: BatchId) -> Any:
    async with client_of(url, customer.secret) as client:
        return (await client.get(f"/v1/batches/{made}")).json()["request_counts"]


@pytest.mark.parametrize("status", [BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED])
async def test_what_has_ended_cannot_be_cancelled(
    database: Database, url: str, customer: Customer, status: BatchStatus
) -> None:
    made = await make_batch(database, customer, status=status)
    async with client_of(url, customer.secret) as client:
        response = await client.post(f"/v1/batches/{made}/cancel")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "batch_has_ended")
    assert status.value in response.json()["error"]["message"]


BAD_ORDERS = {
    "no input file": ({"input_file_id": None}, "input_file_id"),
    "an unknown endpoint": ({"endpoint": "/v1/embeddings"}, "endpoint"),
    "no window": ({"completion_window": None}, "completion_window"),
    "a window that is none": ({"completion_window": "soon"}, "completion_window"),
    "a window too short": ({"completion_window": "0m"}, "completion_window"),
    "a window too long": ({"completion_window": "31d"}, "completion_window"),
    "17 pairs": ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    "a long name": ({"metadata": {"x" * 65: ""}}, "metadata"),
    "a long value": ({"metadata": {"x": "y" * 513}}, "metadata[...]"),
    "a value that is no text": ({"metadata": {"x": 1}}, "metadata[...]"),
    "another anchor": (
        {"output_expires_after": {"anchor": "now", "seconds": 3_600}},
        "output_expires_after.anchor",
    ),
    "too short a life": (
        {"output_expires_after": {"anchor": "created_at", "seconds": 3_599}},
        "output_expires_after.seconds",
    ),
    "too long a life": (
        {"output_expires_after": {"anchor": "created_at", "seconds": 2_592_001}},
        "output_expires_after.seconds",
    ),
}


async def test_an_order_that_cannot_be_met_names_what_is_wrong(url: str, customer: Customer) -> None:
    order = {
        "input_file_id": await upload(url, customer.secret, chat_line()),
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    async with client_of(url, customer.secret) as client:
        for name, (change, param) in BAD_ORDERS.items():
            body = {key: value for key, value in (order | change).items() if value is not None}
            response = await client.post("/v1/batches", json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param), (name, error)
            assert (error["type"], "\n" in error["message"]) == ("invalid_request_error", False)
        for content, status in ((b"{", 400), (b"[]", 400), (b" " * 70_000, 413)):
            response = await client.post("/v1/batches", content=content)
            assert response.status_code == status
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_only_a_file_of_ones_own_and_for_batches_can_be_read(
    database: Database, url: str, customer: Customer
) -> None:
    other = await make_customer(database, "other")
    theirs = await upload(url, other.secret, chat_line())
    async with openai_client(url, customer.secret) as client:
        for file_id in (theirs, "file-nothing"):
            with pytest.raises(NotFoundError) as caught:
                await client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
            assert caught.value.param == "input_file_id"


async def test_an_order_that_is_sent_again_under_its_key_makes_no_second_batch(
    url: str, customer: Customer
) -> None:
    body = {
        "input_file_id": await upload(url, customer.secret, chat_line()),
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    async with client_of(url, customer.secret) as client:
        client.headers["Idempotency-Key"] = "once"
        first, second = [(await client.post("/v1/batches", json=body)).json()["id"] for _ in range(2)]
        other = await client.post("/v1/batches", json=body | {"completion_window": "1h"})
        listed = (await client.get("/v1/batches")).json()
    assert first == second
    assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_key_reused")
    assert (len(listed["data"]), listed["first_id"], listed["last_id"], listed["has_more"]) == (
        1,
        first,
        first,
        False,
    )


async def test_a_key_without_the_scope_is_told_which(
    database: Database, url: str, customer: Customer
) -> None:
    issued = await issue_key(
        database, PEPPER, "test", customer.tenant.id, name="narrow", scopes=ALL_SCOPES - {Scope.BATCH}
    )
    async with client_of(url, issued.secret) as client:
        response = await client.get("/v1/batches")
    assert (response.status_code, "batch" in response.json()["error"]["message"]) == (403, True)


async def test_a_page_that_there_cannot_be_is_refused(url: str, customer: Customer) -> None:
    pages = {"limit=0": 400, "limit=101": 400, "limit=x": 400, "after=batch_none": 404}
    async with client_of(url, customer.secret) as client:
        for query, status in pages.items():
            response = await client.get(f"/v1/batches?{query}")
            assert response.status_code == status, query
            assert json.loads(response.text)["error"]["message"], query


async def change(database: Database, made: BatchId, **values: Any) -> None:
    async with database.system_transaction() as connection:
        await connection.execute(update(batches).where(batches.c.id == made).values(**values))
