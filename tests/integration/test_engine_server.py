"""The engine over its real WebSocket, with the scripted runner: frames, cancels, lost connections, health."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from engine import protocol
from engine.loop import MAX_FAILED_STEPS
from engine.protocol import (
    Cancel,
    Finished,
    FinishReason,
    Goodbye,
    Hello,
    Refused,
    Report,
    ReportQuery,
    Sampling,
    TokenDelta,
)
from engine.runner.scripted_runner import ScriptedRunner, letters
from tests.builders.engine_peer import Peer, dial, request
from tests.builders.scripted_engine import LIMITS, SHARED_SECRET, ScriptedEngine, scripted_engine

SLOW = ScriptedRunner(letters(ord("a"), 26), seconds_per_step=0.01)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with scripted_engine("{}") as running:
        yield running


async def test_a_request_is_answered_token_by_token_and_counted(engine: ScriptedEngine) -> None:
    peer = await dial(engine)
    await peer.send(request())
    events = await peer.events_until(Finished)
    tokens = [token for event in events if isinstance(event, TokenDelta) for token in event.token_ids]
    assert bytes(tokens) == b"defg"  # by position: the prompt holds positions 0 to 2
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is FinishReason.LENGTH
    assert events[-1].usage == protocol.Usage(prompt_tokens=3, cached_tokens=0, completion_tokens=4)


async def test_several_messages_of_one_frame_are_obeyed_in_their_order(engine: ScriptedEngine) -> None:
    peer = await dial(engine)
    first, second = request("first"), request("second")
    await peer.websocket.send(protocol.encode_burst([first, second, protocol.Cancel(first.id)]))
    ends = await peer.end_of(first.id, second.id)
    reasons = {id: end.reason for id, end in ends.items() if isinstance(end, Finished)}
    assert reasons == {first.id: FinishReason.CANCELLED, second.id: FinishReason.LENGTH}


async def test_a_stranger_without_the_shared_secret_is_turned_away(engine: ScriptedEngine) -> None:
    with pytest.raises(InvalidStatus, match="401"):
        await connect(engine.url, additional_headers={"Authorization": "Bearer guess"})


async def test_another_major_version_is_told_why(engine: ScriptedEngine) -> None:
    websocket = await connect(engine.url, additional_headers={"Authorization": f"Bearer {SHARED_SECRET}"})
    peer = Peer(websocket)
    await peer.send(Hello(protocol.PROTOCOL_MAJOR + 1, 0, "gateway", 1))
    answer = await peer.receive()
    assert isinstance(answer, Goodbye)
    assert "protocol 1." in answer.reason


@pytest.mark.parametrize("frame", [b"\xc1 not msgpack", protocol.encode_burst([])])
async def test_a_frame_that_is_no_message_ends_only_its_connection(
    engine: ScriptedEngine, frame: bytes
) -> None:
    broken, healthy = await dial(engine), await dial(engine, epoch=2)
    await broken.websocket.send(frame)
    while not isinstance(await broken.receive(), Goodbye):
        pass
    await healthy.send(request(epoch=2))
    assert isinstance((await healthy.events_until(Finished))[-1], Finished)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt_ids": ()}, "invalid_request"),
        ({"prompt_ids": (9999,)}, "invalid_request"),
        ({"prompt_ids": (-1,)}, "invalid_request"),
        ({"model": "another"}, "invalid_request"),
        ({"epoch": 7}, "invalid_request"),
        ({"adapter": "lora"}, "invalid_request"),
        ({"sampling": Sampling(max_tokens=0)}, "invalid_request"),
        ({"sampling": Sampling(max_tokens=257)}, "output_too_long"),
        ({"prompt_ids": (1,) * 400, "sampling": Sampling(max_tokens=200)}, "context_too_long"),
    ],
)
async def test_a_request_that_can_never_run_is_refused_at_once(
    engine: ScriptedEngine, changes: dict[str, object], reason: str
) -> None:
    peer = await dial(engine)
    await peer.send(request(**changes))
    (refused,) = await peer.events_until(Refused)
    assert isinstance(refused, Refused)
    assert refused.reason == reason


async def test_a_request_larger_than_the_cache_is_refused_at_submit() -> None:
    async with scripted_engine("{}", num_blocks=8, block_size=16) as engine:
        peer = await dial(engine)
        await peer.send(request(prompt_ids=(1,) * 120, sampling=Sampling(max_tokens=8)))
        (refused,) = await peer.events_until(Refused)
        assert isinstance(refused, Refused)
        assert refused.reason == "kv_never_fits"


async def test_an_observer_sees_statuses_and_may_not_send_requests(engine: ScriptedEngine) -> None:
    observer = await dial(engine, observer=True)
    await observer.send(request())
    (refused,) = await observer.events_until(Refused)
    assert isinstance(refused, Refused)
    status = await observer.status_where(lambda status: True)
    assert status.kv_blocks_total == status.kv_blocks_free == 256


async def test_a_cancel_frees_the_blocks_within_a_step() -> None:
    async with scripted_engine("{}", runner=SLOW) as engine:
        peer = await dial(engine)
        await peer.send(request(sampling=Sampling(max_tokens=200)))
        await peer.events_until(TokenDelta)
        await peer.send(Cancel("r1"))
        events = await peer.events_until(Finished)
        assert isinstance(events[-1], Finished)
        assert events[-1].reason is FinishReason.CANCELLED
        step = engine.loop.progress.step
        status = await peer.status_where(lambda status: status.kv_blocks_used == 0)
        assert status.step <= step + 1


async def test_a_lost_connection_cancels_what_it_carried_and_can_be_settled_later() -> None:
    async with scripted_engine("{}", runner=SLOW) as engine:
        lost, witness = await dial(engine, epoch=1), await dial(engine, epoch=2)
        await lost.send(request(sampling=Sampling(max_tokens=200)))
        await lost.events_until(TokenDelta)
        lost.websocket.transport.abort()
        await witness.status_where(lambda status: status.interactive.running == 0)
        await witness.send(ReportQuery("gateway", 1))
        while not isinstance(report := await witness.receive(), Report):
            pass
        (record,) = report.records
        assert record.usage.prompt_tokens == 3
        assert 1 <= record.usage.completion_tokens < 200


async def test_a_request_past_its_deadline_stops_where_it_is() -> None:
    async with scripted_engine("{}", runner=SLOW) as engine:
        peer = await dial(engine)
        await peer.send(request(timeout_ms=100, sampling=Sampling(max_tokens=200)))
        events = await peer.events_until(Finished)
        assert isinstance(events[-1], Finished)
        assert events[-1].reason is FinishReason.DEADLINE
        assert 0 < events[-1].usage.completion_tokens < 200


async def test_a_request_that_waited_too_long_is_refused_with_the_reason() -> None:
    limits = replace(LIMITS, max_num_seqs=1, waiting_timeout_ms=100)
    async with scripted_engine("{}", runner=SLOW, limits=limits) as engine:
        peer = await dial(engine)
        await peer.send(request("runs", sampling=Sampling(max_tokens=100)))
        await peer.send(request("waits"))
        events = await peer.events_until(Refused)
        assert isinstance(events[-1], Refused)
        assert (events[-1].id, events[-1].reason) == ("waits", "waiting_timeout")


async def test_a_step_that_fails_ends_its_requests_and_not_the_engine() -> None:
    class Failing(ScriptedRunner):
        def collect(self, in_flight):
            if any(row.token_ids[0] == 13 for row in in_flight.rows):
                raise RuntimeError("unlucky token")
            return super().collect(in_flight)

    async with scripted_engine("{}", runner=Failing(letters(ord("a"), 26))) as engine:
        peer = await dial(engine)
        await peer.send(request("bad", prompt_ids=(13, 13)))
        events = await peer.events_until(protocol.Failed)
        assert isinstance(events[-1], protocol.Failed)
        assert "unlucky token" in events[-1].error
        await peer.send(request("good"))
        assert isinstance((await peer.events_until(Finished))[-1], Finished)
        assert not engine.crash.done()


async def test_a_connection_that_cannot_be_told_anything_is_closed(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await dial(engine)
    monkeypatch.setattr(engine.server, "_model", replace(engine.server._model, name="\ud800"))  # no UTF-8
    with pytest.raises(ConnectionClosedError, match="1011"):
        await peer.events_until(Finished)


async def test_an_engine_whose_loop_crashed_still_stops() -> None:
    class Bug(BaseException):
        pass

    class Crashing(ScriptedRunner):
        def collect(self, in_flight):
            raise Bug

    async with asyncio.timeout(10):
        async with scripted_engine("{}", runner=Crashing(letters(ord("a"), 26))) as engine:
            peer = await dial(engine)
            await peer.send(request())
            await engine.crash


async def test_a_cancel_of_anothers_request_is_ignored() -> None:
    async with scripted_engine("{}", runner=SLOW) as engine:
        owner, stranger = await dial(engine, epoch=1), await dial(engine, epoch=2)
        await owner.send(request(sampling=Sampling(max_tokens=20)))
        await owner.events_until(TokenDelta)
        await stranger.send(Cancel("r1"))
        events = await owner.events_until(Finished)
        assert isinstance(events[-1], Finished)
        assert events[-1].reason is FinishReason.LENGTH


async def test_steps_that_keep_failing_end_the_loop_so_that_another_process_takes_over() -> None:
    class Lost(ScriptedRunner):
        def collect(self, in_flight):
            raise RuntimeError("the device is lost")

    async with scripted_engine("{}", runner=Lost(letters(ord("a"), 26))) as engine:
        peer = await dial(engine)
        for number in range(MAX_FAILED_STEPS - 1):
            await peer.send(request(f"r{number}"))
            assert isinstance((await peer.events_until(protocol.Failed))[-1], protocol.Failed)
        assert not engine.crash.done()
        await peer.send(request("last"))
        assert "the device is lost" in str(await asyncio.wait_for(engine.crash, 5))


async def test_health_fails_when_a_step_hangs_and_only_then(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(path: str) -> int:
        url = engine.url.replace("ws://", "http://") + path
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert await asyncio.to_thread(get, "/healthz") == 200
    monkeypatch.setattr("engine.loop.STALLED_AFTER_SECONDS", -1.0)
    assert await asyncio.to_thread(get, "/healthz") == 200  # no work, so standing still is right
    peer = await dial(engine)
    await peer.send(request(sampling=Sampling(max_tokens=200)))
    await peer.events_until(TokenDelta)
    assert await asyncio.to_thread(get, "/healthz") == 503
    assert await asyncio.to_thread(get, "/metrics") == 200
