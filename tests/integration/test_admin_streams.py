"""The live stream over real HTTP: what it carries, how many there may be, and when it ends."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from sqlalchemy import delete

from admin_ui.streams import MAX_STREAMS_PER_SESSION
from engine.protocol import ClassCounts
from gateway.batches.tables import batch
from gateway.db import Database
from gateway.operators.service import create_invite
from tests.builders.admin_process import AdminProcess
from tests.builders.admin_site import ENGINE_SECRET, PASSWORD, hidden_fields
from tests.builders.batches import finish_lines, make_batch
from tests.builders.http_clients import http_client
from tests.builders.store import make_customer
from tests.fakes.reporting_engine import ReportingEngine

pytestmark = pytest.mark.postgres


@pytest.fixture
def engine() -> Iterator[ReportingEngine]:
    with ReportingEngine(secret=ENGINE_SECRET) as engine:
        yield engine


@pytest.fixture
def process(database_url: str, engine: ReportingEngine) -> Iterator[AdminProcess]:
    with AdminProcess(database_url, engines=(engine.url,)) as process:
        yield process


@pytest.fixture
async def operator(process: AdminProcess, database: Database) -> AsyncIterator[httpx.AsyncClient]:
    token = await create_invite(database)
    async with http_client(base_url=process.url, headers={"Origin": process.url}, timeout=10) as client:
        fields = hidden_fields((await client.get(f"/setup/{token}")).text)
        await client.post(f"/setup/{token}", data={**fields, "name": "ada", "password": PASSWORD})
        yield client


class Stream:
    """An open event stream; it stays open for as long as this is kept."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.parts = answer.aiter_text()

    async def until(self, wanted: str) -> str:
        """Reads until a text has come; fails when the stream ends before."""
        read = ""
        async for part in self.parts:
            read += part
            if wanted in read:
                return read
        raise AssertionError(f"the stream ended without {wanted!r}")


@asynccontextmanager
async def open_stream(operator: httpx.AsyncClient, path: str = "/live") -> AsyncIterator[Stream]:
    """A stream of which the first event has come."""
    async with operator.stream("GET", path) as answer:
        stream = Stream(answer)
        await stream.until("event: drawn")
        yield stream


async def test_the_stream_carries_the_page_s_own_html(
    operator: httpx.AsyncClient, engine: ReportingEngine
) -> None:
    async with open_stream(operator) as stream:
        engine.say(interactive=ClassCounts(running=7_331, waiting=0))
        assert '<p class="figure">7,331</p>' in await stream.until("7,331</p>")
        assert stream.answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("path", ["/batches/live?state=open", "/batches/{batch}/live"])
async def test_batches_are_drawn_anew(operator: httpx.AsyncClient, database: Database, path: str) -> None:
    customer = await make_customer(database)
    made = await make_batch(database, customer, num_items=4)
    async with open_stream(operator, path.replace("{batch}", made)) as stream:
        await finish_lines(database, customer, made, [1, 2])
        await stream.until('aria-valuenow="2"')


async def test_the_stream_of_a_batch_that_is_removed_ends(
    operator: httpx.AsyncClient, database: Database
) -> None:
    made = await make_batch(database, await make_customer(database))
    async with open_stream(operator, f"/batches/{made}/live") as stream:
        async with database.system_transaction() as connection:
            await connection.execute(delete(batch).where(batch.c.id == made))
        async for _ in stream.parts:
            pass


async def test_the_process_stops_at_once_although_a_stream_is_open(
    operator: httpx.AsyncClient, process: AdminProcess
) -> None:
    async with open_stream(operator):
        assert process.seconds_to_stop() < 2.0


async def test_a_session_has_only_so_many_streams(operator: httpx.AsyncClient) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MAX_STREAMS_PER_SESSION):
            await stack.enter_async_context(open_stream(operator))
        async with operator.stream("GET", "/live") as refused:
            assert refused.status_code == 429


async def test_a_closed_stream_makes_room_for_another(operator: httpx.AsyncClient) -> None:
    for _ in range(MAX_STREAMS_PER_SESSION + 2):
        async with open_stream(operator):
            pass
