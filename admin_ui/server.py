"""Serves the admin UI over HTTP until the process is told to stop, and then stops at once."""

import asyncio
import socket
from typing import Final

import uvicorn

from admin_ui.app import create_app, end_streams
from admin_ui.background import running
from admin_ui.settings import AdminSettings

STOP_NOTICED_WITHIN_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 3


async def serve(settings: AdminSettings, *, sockets: list[socket.socket] | None = None) -> None:
    """Serves until SIGINT or SIGTERM. `sockets`, when given, are already listening.

    A stream of events never ends by itself, and uvicorn waits for all responses: so they are ended first.
    """
    app = create_app(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.admin.host,
            port=settings.admin.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )

    async def end_streams_at_exit() -> None:
        while not server.should_exit:  # noqa: ASYNC110 - uvicorn has a flag, no event
            await asyncio.sleep(STOP_NOTICED_WITHIN_SECONDS)
        end_streams(app)

    async with running(end_streams_at_exit()):
        await server.serve(sockets)
