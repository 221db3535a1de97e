"""A gateway in miniature, at the other end of an engine's real WebSocket."""

import asyncio
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection, connect

from engine import protocol
from engine.protocol import (
    EngineDescription,
    EngineStatus,
    GenerateRequest,
    Hello,
    RequestClass,
    Sampling,
    StepEvents,
)
from tests.builders.scripted_engine import SHARED_SECRET, ScriptedEngine


class Peer:
    """Sends messages, and sorts what comes back."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket

    async def send(self, message: protocol.GatewayMessage) -> None:
        """Sends one message."""
        await self.websocket.send(protocol.encode(message))

    async def receive(self) -> protocol.EngineMessage:
        """The next message, whatever it is."""
        frame = await asyncio.wait_for(self.websocket.recv(), 5)
        assert isinstance(frame, bytes)
        return protocol.decode_from_engine(frame)

    async def events_until(self, last: type) -> list[protocol.SequenceEvent]:
        """All events up to the first frame whose last one is a `last`; other messages are dropped."""
        events: list[protocol.SequenceEvent] = []
        while not (events and isinstance(events[-1], last)):
            message = await self.receive()
            if isinstance(message, StepEvents):
                events.extend(message.events)
        return events

    async def end_of(self, *ids: str) -> dict[str, protocol.SequenceEvent]:
        """The last event of each of these requests; everything else is dropped."""
        ends: dict[str, protocol.SequenceEvent] = {}
        while len(ends) < len(ids):
            message = await self.receive()
            if isinstance(message, StepEvents):
                last = (each for each in message.events if not isinstance(each, protocol.TokenDelta))
                ends |= {each.id: each for each in last if each.id in ids}
        return ends

    async def status_where(self, condition: Callable[[EngineStatus], bool]) -> EngineStatus:
        """The next status of which that holds; all before it is dropped."""
        while True:
            message = await self.receive()
            if isinstance(message, EngineStatus) and condition(message):
                return message


async def dial(
    engine: ScriptedEngine, *, epoch: int = 1, observer: bool = False, secret: str = SHARED_SECRET
) -> Peer:
    """Connects to an engine of this process and says hello."""
    return await dial_url(engine.url, epoch=epoch, observer=observer, secret=secret)


async def dial_url(url: str, *, epoch: int = 1, observer: bool = False, secret: str) -> Peer:
    """Connects to any engine and says hello."""
    headers = {"Authorization": f"Bearer {secret}"}
    peer = Peer(await connect(url, additional_headers=headers, max_size=protocol.MAX_FRAME_BYTES))
    await peer.send(Hello(protocol.PROTOCOL_MAJOR, 0, "gateway", epoch, observer))
    assert isinstance(await peer.receive(), EngineDescription)
    return peer


def request(id: str = "r1", **changes: object) -> GenerateRequest:
    """A request of three tokens for four more."""
    base = GenerateRequest(
        id=id,
        trace_id="trace",
        model="scripted",
        tenant="tenant",
        request_class=RequestClass.INTERACTIVE,
        prompt_ids=(1, 2, 3),
        sampling=Sampling(max_tokens=4),
        timeout_ms=60_000,
        epoch=1,
    )
    return GenerateRequest(**{**{name: getattr(base, name) for name in base.__struct_fields__}, **changes})
