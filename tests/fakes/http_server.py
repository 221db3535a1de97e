"""Serves an ASGI application over real HTTP on a free port, in the test's own loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The base URL of a running server."""
    # With the protocol named, asyncio switches Nagle's algorithm off on accepted connections; else not.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    running = asyncio.create_task(server.main_loop())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running
        await server.shutdown(sockets=[listener])
