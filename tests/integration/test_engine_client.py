"""The gateway's connection to an engine, over a real WebSocket."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from engine.protocol import (
    BURSTS_SINCE_MINOR,
    Configure,
    FinishReason,
    GenerateRequest,
    RequestClass,
    TokenDelta,
    Window,
)
from gateway.engines.client import EngineAddress, EngineClient, EngineUnreachableError, Identity
from gateway.engines.directory import EngineDirectory
from gateway.engines.stream import EngineLost, EngineStream, StreamEvent
from tests.builders.engine_messages import engine_description, engine_status, generate_request
from tests.fakes.websocket_engine import WebSocketEngine, answer, finished, hold

IDENTITY = Identity(replica="gateway-1", epoch=7, shared_secret="secret")


class Connected:
    """A client, and a way to wait for what it notices."""

    def __init__(self, url: str, identity: Identity = IDENTITY) -> None:
        self._changed = asyncio.Event()
        self.client = EngineClient(EngineAddress(url=url), identity, on_change=self._changed.set)
        self.client.start()

    async def until_connected(self, wanted: bool = True) -> None:
        async with asyncio.timeout(10):
            while self.client.connected is not wanted:
                self._changed.clear()
                await self._changed.wait()

    async def until_changed(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(10):
            await self._changed.wait()


@pytest.fixture
async def engine() -> AsyncIterator[WebSocketEngine]:
    engine = WebSocketEngine(engine_description(), hold)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def connected(engine: WebSocketEngine) -> AsyncIterator[Connected]:
    connected = Connected(engine.url)
    await connected.until_connected()
    yield connected
    await connected.client.stop()


def submitted(client: EngineClient, request: GenerateRequest) -> EngineStream:
    stream = EngineStream(request)
    client.submit(stream)
    return stream


async def all_events(stream: EngineStream) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    until = asyncio.get_running_loop().time() + 10
    while not stream.ended:
        taken = await stream.take(until=until)
        assert taken, "the stream did not end"
        events += taken
    return events + (await stream.take(until=0))


async def test_introduces_itself_and_learns_what_the_engine_serves(
    engine: WebSocketEngine, connected: Connected
) -> None:
    assert connected.client.description == engine.description
    assert (engine.hellos[0].replica, engine.hellos[0].epoch) == ("gateway-1", 7)


async def test_a_request_gets_its_events_in_order(engine: WebSocketEngine, connected: Connected) -> None:
    engine.script = answer(5, 6, 7)
    request = generate_request()
    stream = submitted(connected.client, request)
    assert await all_events(stream) == [
        TokenDelta(request.id, (5,)),
        TokenDelta(request.id, (6,)),
        TokenDelta(request.id, (7,)),
        finished(request, FinishReason.STOP, 3),
    ]
    assert connected.client.num_open == 0


async def test_a_cancelled_request_keeps_its_place_until_the_engine_has_ended_it(
    engine: WebSocketEngine, connected: Connected
) -> None:
    request = generate_request()
    stream = submitted(connected.client, request)
    connected.client.cancel(request.id)
    await engine.until(lambda: engine.cancelled == [request.id])
    assert connected.client.room(RequestClass.INTERACTIVE) == 7
    engine.send(finished(request, FinishReason.CANCELLED, 0))
    assert await all_events(stream) == [finished(request, FinishReason.CANCELLED, 0)]
    assert connected.client.room(RequestClass.INTERACTIVE) == 8


@pytest.mark.parametrize(("minor", "sizes"), [(BURSTS_SINCE_MINOR, [1, 16, 4]), (2, [1] * 21)])
async def test_what_is_ready_at_once_goes_in_few_frames_to_an_engine_that_reads_them(
    engine: WebSocketEngine, minor: int, sizes: list[int]
) -> None:
    engine.description = replace(engine.description, minor=minor)
    connected = Connected(engine.url)
    await connected.until_connected()
    requests = [generate_request(id=f"request-{number}") for number in range(20)]
    for request in requests:
        submitted(connected.client, request)
    await engine.until(lambda: len(engine.received) == 20)
    await connected.client.stop()
    assert [one.id for one in engine.received] == [one.id for one in requests]
    assert engine.frame_sizes == sizes


async def test_a_request_that_cannot_be_written_ends_as_lost_and_the_next_one_is_served(
    engine: WebSocketEngine, connected: Connected
) -> None:
    stream = submitted(connected.client, generate_request(tenant="\ud800"))  # no UTF-8
    assert await all_events(stream) == [EngineLost()]
    engine.script = answer(5)
    await connected.until_connected()
    assert len(await all_events(submitted(connected.client, generate_request()))) == 2


async def test_a_status_changes_the_window(engine: WebSocketEngine, connected: Connected) -> None:
    engine.send_message(engine_status(window=Window(interactive=3, offline=0)))
    await connected.until_changed()
    assert connected.client.room(RequestClass.INTERACTIVE) == 3
    assert connected.client.room(RequestClass.OFFLINE) == 0


async def test_beyond_the_window_there_is_one_place_for_each_tenant_that_has_none_and_as_many_again_in_all(
    engine: WebSocketEngine, connected: Connected
) -> None:
    client, names = connected.client, ["flood", *(f"modest{number}" for number in range(5))]
    engine.send_message(engine_status(window=Window(interactive=2, offline=1)))
    await connected.until_changed()
    for number in range(2):
        submitted(client, generate_request(id=f"flood-{number}", tenant="flood"))
    assert client.room(RequestClass.INTERACTIVE) == 0
    assert client.newcomers(RequestClass.INTERACTIVE, names) == ["modest0", "modest1"]
    submitted(client, generate_request(id="modest", tenant="modest0"))
    assert client.newcomers(RequestClass.INTERACTIVE, names) == ["modest1"]
    submitted(client, generate_request(id="another", tenant="modest1"))
    assert client.newcomers(RequestClass.INTERACTIVE, names) == []
    assert client.newcomers(RequestClass.OFFLINE, ["flood"]) == ["flood"], "each class has a window"


async def test_a_tenant_whose_requests_have_all_ended_is_a_newcomer_again(
    engine: WebSocketEngine, connected: Connected
) -> None:
    request = generate_request(tenant="modest")
    stream = submitted(connected.client, request)
    assert connected.client.newcomers(RequestClass.INTERACTIVE, ["modest"]) == []
    engine.send(finished(request, FinishReason.STOP, 0))
    await all_events(stream)
    assert connected.client.newcomers(RequestClass.INTERACTIVE, ["modest"]) == ["modest"]


async def test_a_lost_engine_lets_no_newcomer_in(engine: WebSocketEngine, connected: Connected) -> None:
    await engine.stop()
    await connected.until_connected(False)
    assert connected.client.newcomers(RequestClass.INTERACTIVE, ["modest"]) == []
    await engine.start()


async def test_a_configuration_is_sent_while_connected_and_never_kept_for_later(
    engine: WebSocketEngine, connected: Connected
) -> None:
    connected.client.configure(Configure(revision=1))
    await engine.until(lambda: len(engine.configured) == 1)
    await engine.stop()
    await connected.until_connected(False)
    connected.client.configure(Configure(revision=2))
    await engine.start()
    await connected.until_connected()
    connected.client.configure(Configure(revision=3))
    await engine.until(lambda: len(engine.configured) == 2)
    assert [each.revision for each in engine.configured] == [1, 3]


@pytest.mark.parametrize("state", [{"draining": True}, {"healthy": False}])
async def test_an_engine_that_cannot_progress_has_no_room(
    engine: WebSocketEngine, connected: Connected, state: dict[str, bool]
) -> None:
    engine.send_message(engine_status(**state))
    await connected.until_changed()
    assert connected.client.room(RequestClass.INTERACTIVE) == 0


async def test_a_lost_engine_ends_every_stream_and_is_connected_again(
    engine: WebSocketEngine, connected: Connected
) -> None:
    streams = [submitted(connected.client, generate_request(id=f"request-{number}")) for number in range(3)]
    await engine.until(lambda: len(engine.received) == 3)
    await engine.stop()
    for stream in streams:
        assert await all_events(stream) == [EngineLost()]
    await connected.until_connected(False)
    with pytest.raises(EngineUnreachableError):
        submitted(connected.client, generate_request())
    await engine.start()
    await connected.until_connected()
    assert connected.client.room(RequestClass.INTERACTIVE) == 8


async def test_a_report_is_answered_to_everyone_who_asked(connected: Connected) -> None:
    first, second = await asyncio.gather(
        connected.client.report_ended(replica="old", epoch=3),
        connected.client.report_ended(replica="old", epoch=3),
    )
    assert first == second
    assert (first.replica, first.epoch) == ("old", 3)


async def test_a_wrong_shared_secret_is_not_let_in(engine: WebSocketEngine) -> None:
    stranger = Connected(engine.url, Identity(replica="x", epoch=1, shared_secret="wrong"))
    await stranger.until_changed()
    assert not stranger.client.connected
    assert engine.hellos == []
    await stranger.client.stop()


async def test_another_major_version_is_not_served(engine: WebSocketEngine) -> None:
    engine.description = engine_description(major=99)
    stranger = Connected(engine.url)
    await stranger.until_changed()
    assert not stranger.client.connected
    await stranger.client.stop()


async def test_the_directory_names_the_engines_that_serve_a_model(engine: WebSocketEngine) -> None:
    changed = asyncio.Event()

    def make_client(address: EngineAddress) -> EngineClient:
        return EngineClient(address, IDENTITY, on_change=changed.set)

    directory = EngineDirectory([engine.url.replace("127.0.0.1", "localhost")], make_client)
    await directory.start()
    async with asyncio.timeout(10):
        while not directory.serving("tiny"):
            changed.clear()
            await changed.wait()
    assert directory.serving("another") == []
    assert directory.with_room("tiny", RequestClass.INTERACTIVE) in directory.clients
    await directory.stop()
