"""Asks a running part whether it is ready, and an engine what it serves."""

import asyncio
import urllib.error
import urllib.request

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from engine import protocol

TIMEOUT_SECONDS = 5.0


async def is_up(url: str) -> bool:
    """Whether an HTTP GET of `url` is answered with 200."""
    return await asyncio.to_thread(_get, url)


def _get(url: str) -> bool:
    """Straight to our own address: a proxy of the environment's would look for it at its own place."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=TIMEOUT_SECONDS) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


async def describe_engine(url: str, shared_secret: str) -> protocol.EngineDescription | None:
    """What the engine at `url` serves, or None while it is not there."""
    headers = {"Authorization": f"Bearer {shared_secret}"}
    hello = protocol.Hello(protocol.PROTOCOL_MAJOR, protocol.PROTOCOL_MINOR, "probe", 0, observer=True)
    try:
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            connect(
                url, additional_headers=headers, max_size=protocol.MAX_FRAME_BYTES, proxy=None
            ) as websocket,
        ):
            await websocket.send(protocol.encode(hello))
            frame = await websocket.recv()
    except (OSError, TimeoutError, WebSocketException):
        return None
    message = protocol.decode_from_engine(frame if isinstance(frame, bytes) else frame.encode())
    return message if isinstance(message, protocol.EngineDescription) else None
