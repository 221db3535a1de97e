"""Puts the headers that every response has on every response. Plain ASGI: it costs a few microseconds."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.context import RequestContext, keep_context, make_context
from gateway.api.headers import API_VERSION, Headers


class CommonHeaders:
    """Makes each request's context and names it in the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = make_context(scope, now=asyncio.get_running_loop().time())
        scope.setdefault("state", {})
        keep_context(scope, context)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *common_headers(context)]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def common_headers(context: RequestContext) -> Headers:
    """Ids, and how long the response has taken so far."""
    elapsed_ms = (asyncio.get_running_loop().time() - context.arrived_at) * 1000
    return [
        (b"x-request-id", context.request_id.encode()),
        (b"openai-processing-ms", b"%d" % elapsed_ms),
        (b"openai-version", API_VERSION),
    ]
