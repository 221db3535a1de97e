"""A peer of the engine that only looks, as the admin UI does."""

import asyncio
from collections.abc import Callable

from websockets.asyncio.client import connect

from engine import protocol
from engine.protocol import EngineStatus


async def latest_status(
    url: str, shared_secret: str, condition: Callable[[EngineStatus], bool], *, seconds: float = 10.0
) -> EngineStatus:
    """The first status that fulfils `condition`; raises TimeoutError when none does in time."""
    hello = protocol.Hello(protocol.PROTOCOL_MAJOR, protocol.PROTOCOL_MINOR, "observer", 0, observer=True)
    headers = {"Authorization": f"Bearer {shared_secret}"}
    async with (
        asyncio.timeout(seconds),
        connect(url, additional_headers=headers, max_size=protocol.MAX_FRAME_BYTES) as websocket,
    ):
        await websocket.send(protocol.encode(hello))
        async for frame in websocket:
            assert isinstance(frame, bytes)
            message = protocol.decode_from_engine(frame)
            if isinstance(message, EngineStatus) and condition(message):
                return message
    raise AssertionError("the engine closed the connection")
