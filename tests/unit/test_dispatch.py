"""Requests leave the queues as late as possible, people first, tenants in turns."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine.protocol import AdmissionReason, Finished, FinishReason, Refused, RequestClass, Usage
from gateway.dispatch import Dispatcher
from gateway.engines.stream import EngineStream, StreamEvent
from gateway.metrics import GatewayMetrics
from gateway.queues.policy import next_class
from tests.builders.engine_messages import generate_request

INTERACTIVE, OFFLINE = RequestClass.INTERACTIVE, RequestClass.OFFLINE


class FakeEngine:
    """Room to set, and the ids of what was handed over and cancelled."""

    def __init__(self) -> None:
        self.connected = True
        self.left = {INTERACTIVE: 0, OFFLINE: 0}
        self.handed_over: list[str] = []
        self.cancelled: list[str] = []

    def submit(self, stream: EngineStream) -> None:
        self.left[stream.request.request_class] -= 1
        self.handed_over.append(stream.request.id)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


class FakeDirectory:
    """One engine that serves everything."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.clients = (self.engine,)

    def serving(self, _: str) -> list[FakeEngine]:
        return [self.engine] if self.engine.connected else []

    def with_room(self, _: str, request_class: RequestClass) -> FakeEngine | None:
        return self.engine if self.engine.left[request_class] > 0 else None


class World:
    """A dispatcher with one engine."""

    def __init__(self, *, max_queued: int = 100) -> None:
        self.directory = FakeDirectory()
        self.engine = self.directory.engine
        metrics = GatewayMetrics(CollectorRegistry())
        self.dispatcher = Dispatcher(self.directory, metrics, max_queued=max_queued)  # type: ignore[arg-type]

    def open(self, name: str, *, timeout_ms: int = 60_000, **changes: Any) -> EngineStream:
        return self.dispatcher.open(
            generate_request(id=name, **changes), deadline=1e9, waiting_timeout_ms=timeout_ms
        )

    def grant(self, **room: int) -> list[str]:
        """What leaves the queues when the engine grants this much."""
        self.engine.handed_over.clear()
        self.engine.left = {INTERACTIVE: room.get("interactive", 0), OFFLINE: room.get("offline", 0)}
        self.dispatcher.pump()
        return self.engine.handed_over


async def last_event(stream: EngineStream) -> StreamEvent:
    (event,) = await stream.take(until=0)
    return event


def reason_of(event: StreamEvent) -> AdmissionReason:
    assert isinstance(event, Refused)
    return event.reason


async def test_with_room_a_request_is_handed_over_at_once() -> None:
    world = World()
    world.grant(interactive=1)
    world.open("a")
    assert world.engine.handed_over == ["a"]
    assert world.dispatcher.num_waiting == 0


async def test_without_room_it_waits_and_tells_how_long() -> None:
    world = World()
    stream = world.open("a")
    assert world.dispatcher.num_waiting == 1
    assert world.grant(interactive=1) == ["a"]
    assert stream.request.queued_ms >= 0
    assert stream.request.timeout_ms > 0


async def test_tenants_take_turns() -> None:
    world = World()
    for number in range(3):
        world.open(f"a{number}", tenant="a")
    world.open("b0", tenant="b")
    assert world.grant(interactive=3) == ["a0", "b0", "a1"]


async def test_people_come_first_even_when_there_is_room_for_jobs_only() -> None:
    world = World()
    world.open("job", request_class=OFFLINE)
    world.open("person")
    assert world.grant(offline=1) == []
    assert world.grant(interactive=1, offline=1) == ["person", "job"]


@pytest.mark.parametrize(
    ("num_interactive", "num_offline", "expected"),
    [(0, 0, None), (1, 0, INTERACTIVE), (0, 1, OFFLINE), (1, 1, INTERACTIVE)],
)
def test_the_next_class(num_interactive: int, num_offline: int, expected: RequestClass | None) -> None:
    assert next_class(num_interactive=num_interactive, num_offline=num_offline) is expected


async def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    world = World()
    stream = world.open("a")
    world.dispatcher.cancel(stream)
    assert world.dispatcher.num_waiting == 0
    assert await last_event(stream) == Finished("a", FinishReason.CANCELLED, Usage(0, 0, 0))
    assert world.grant(interactive=1) == []


async def test_a_request_at_the_engine_is_cancelled_there() -> None:
    world = World()
    world.grant(interactive=1)
    stream = world.open("a")
    world.dispatcher.cancel(stream)
    assert world.engine.cancelled == ["a"]


async def test_waiting_has_an_end() -> None:
    world = World()
    stream = world.open("a", timeout_ms=1)
    events = await stream.take(until=1e9)
    assert reason_of(events[0]) is AdmissionReason.WAITING_TIMEOUT
    assert world.dispatcher.num_waiting == 0


async def test_a_full_queue_refuses() -> None:
    world = World(max_queued=1)
    world.open("a")
    assert reason_of(await last_event(world.open("b"))) is AdmissionReason.QUEUE_FULL


async def test_without_an_engine_a_request_is_refused_at_once() -> None:
    world = World()
    world.engine.connected = False
    assert reason_of(await last_event(world.open("a"))) is AdmissionReason.ENGINE_UNHEALTHY


async def test_those_who_wait_for_an_engine_that_is_lost_are_refused() -> None:
    world = World()
    streams = [world.open("a"), world.open("b", request_class=OFFLINE)]
    world.engine.connected = False
    world.dispatcher.pump()
    assert [reason_of(await last_event(stream)) for stream in streams] == [
        AdmissionReason.ENGINE_UNHEALTHY
    ] * 2
    assert world.dispatcher.num_waiting == 0
