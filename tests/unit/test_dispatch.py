"""Requests leave the queues as late as possible, people first, each tenant with its share of the tokens."""

from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine.protocol import (
    AdmissionReason,
    Finished,
    FinishReason,
    Refused,
    RequestClass,
    Sampling,
    Usage,
    WaitReason,
)
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
        self.newcomers_let_in: list[str] = []
        self.handed_over: list[str] = []
        self.cancelled: list[str] = []

    def submit(self, stream: EngineStream) -> None:
        self.left[stream.request.request_class] -= 1
        self.handed_over.append(stream.request.id)

    def newcomers(self, _: RequestClass, tenants: Iterable[str]) -> list[str]:
        return [tenant for tenant in tenants if tenant in self.newcomers_let_in]

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


async def test_who_asks_for_much_a_time_does_not_get_more_than_who_asks_for_little() -> None:
    world = World()
    for number in range(3):
        world.open(f"big{number}", tenant="a", sampling=Sampling(max_tokens=397))
    for number in range(6):
        world.open(f"small{number}", tenant="b", sampling=Sampling(max_tokens=97))
    assert world.grant(interactive=5) == ["big0", "small0", "small1", "small2", "small3"]


async def test_a_tenant_of_twice_the_weight_gets_two_for_one() -> None:
    world = World()
    for number in range(4):
        world.open(f"a{number}", tenant="a", weight=2.0)
        world.open(f"b{number}", tenant="b")
    first = world.grant(interactive=6)
    assert sum(name.startswith("a") for name in first) == 4


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
    (event,) = events
    assert reason_of(event) is AdmissionReason.WAITING_TIMEOUT
    assert isinstance(event, Refused)
    assert event.wait_reason is WaitReason.MAX_NUM_SEQS
    assert world.dispatcher.num_waiting == 0


async def test_a_full_queue_refuses() -> None:
    world = World(max_queued=1)
    world.open("a")
    assert reason_of(await last_event(world.open("b"))) is AdmissionReason.QUEUE_FULL


async def test_one_tenant_may_fill_half_of_the_queues_and_no_more() -> None:
    world = World(max_queued=4)
    waiting = [world.open("a0"), world.open("a1", request_class=OFFLINE)]
    refused = await last_event(world.open("a2"))
    assert reason_of(refused) is AdmissionReason.TENANT_QUEUE_FULL
    assert isinstance(refused, Refused)
    assert refused.detail == "2 requests of your organization are waiting already, as many as one may have."
    world.open("b0", tenant="b")
    assert world.dispatcher.num_waiting == 3
    world.dispatcher.cancel(waiting[0])
    world.open("a3")
    assert world.dispatcher.num_waiting == 3
    world.open("b1", tenant="b")
    assert reason_of(await last_event(world.open("c0", tenant="c"))) is AdmissionReason.QUEUE_FULL


async def test_what_was_handed_over_timed_out_or_refused_is_no_longer_counted_as_waiting() -> None:
    world = World(max_queued=2)
    world.open("a0")
    assert world.grant(interactive=1) == ["a0"]
    timed_out = world.open("a1", timeout_ms=1)
    await timed_out.take(until=1e9)
    lost = world.open("a2")
    world.engine.connected = False
    world.dispatcher.pump()
    assert reason_of(await last_event(lost)) is AdmissionReason.ENGINE_UNHEALTHY
    world.engine.connected = True
    assert not world.open("a3").ended


async def test_whoever_fills_the_window_keeps_no_other_tenant_from_the_engine() -> None:
    world = World()
    for number in range(3):
        world.open(f"flood{number}", tenant="flood")
        world.open(f"modest{number}", tenant="modest")
    world.engine.newcomers_let_in = ["modest"]
    assert world.grant() == ["modest0"]
    world.engine.newcomers_let_in = []
    assert sorted(world.grant(interactive=5)) == ["flood0", "flood1", "flood2", "modest1", "modest2"]
    assert world.dispatcher.num_waiting == 0


async def test_a_tenant_without_anything_at_the_engine_is_let_in_as_it_comes() -> None:
    world = World()
    world.open("flood", tenant="flood")
    world.engine.newcomers_let_in = ["modest"]
    world.open("modest", tenant="modest")
    assert world.engine.handed_over == ["modest"]


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
