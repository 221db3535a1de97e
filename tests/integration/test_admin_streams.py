"""The live stream over real HTTP: what it carries, how many there may be, and when it ends."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from admin_ui.streams import MAX_STREAMS_PER_SESSION
from engine.protocol import ClassCounts
from gateway.db import Database
from gateway.operators.service import create_invite
from tests.builders.admin_process import AdminProcess
from tests.builders.admin_site import ENGINE_SECRET, PASSWORD, hidden_fields
from tests.builders.http_clients import http_client
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
        self._parts = answer.aiter_text()

    async def until(self, wanted: str) -> str:
        """Reads until a text has come; fails when the stream ends before."""
        read = ""
        async for part in self._parts:
            read += part
            if wanted in read:
                return read
        raise AssertionError(f"the stream ended without {wanted!r}")


@asynccontextmanager
async def open_stream(operator: httpx.AsyncClient) -> AsyncIterator[Stream]:
    """A stream of which the first event has come."""
    async with operator.stream("GET", "/live") as answer:
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
