"""One HTTP request and its response: bytes in within a cap, bytes out within a time, errors in both ways."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from gateway.api.context import RequestContext, context_of
from gateway.api.error_response import error_headers
from gateway.api.headers import Headers
from gateway.api.sse import error_frame
from gateway.errors import DeadlineExceeded, GatewayError, RequestTooLarge
from gateway.rendering import error_body

DISCARD_SECONDS: Final = 2.0
DISCARD_BYTES: Final = 64 * 1024 * 1024


class ClientLeftError(Exception):
    """The client closed the connection before its request was whole."""


class Exchange:
    """`status` is None until the response has begun."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, write_timeout_seconds: float) -> None:
        self.context: RequestContext = context_of(scope)
        self.status: int | None = None
        self.error: GatewayError | None = None
        self._headers = scope["headers"]
        self._receive = receive
        self._send = send
        self._write_timeout_seconds = write_timeout_seconds
        self._has_left = False
        self._watch: asyncio.Task[None] | None = None
        self._worker = _current_task()
        self._is_body_left = False  # whether reading the body was given up: the connection is of no more use
        self._is_body_begun = False

    # --- in ----------------------------------------------------------------------------------------------

    @property
    def num_body_bytes(self) -> int:
        """How long the body is said to be; 0 where that is not said."""
        return _content_length(self._headers)

    async def body_pieces(self, *, silence_seconds: float, within_seconds: float) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises DeadlineExceeded when it is silent or under way for too long, and
        ClientLeftError.
        """
        deadline = asyncio.get_running_loop().time() + within_seconds
        self._is_body_begun = self._is_body_left = True
        while self._is_body_left:
            silent_until = min(deadline, asyncio.get_running_loop().time() + silence_seconds)
            try:
                async with asyncio.timeout_at(silent_until):
                    message = await self._receive()
            except TimeoutError as error:
                raise DeadlineExceeded("The request's body did not arrive in time.") from error
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            self._is_body_left = message.get("more_body", False)
            yield message.get("body", b"")

    async def leave_body(self) -> None:
        """No more of the body is wanted; an error follows. Who waits to be asked for it is not asked."""
        is_waiting = not self._is_body_begun and (b"expect", b"100-continue") in self._headers
        if self._is_body_left or not self._is_body_begun:
            self._is_body_left = True
            if not is_waiting:
                await self._discard_rest()

    async def read_body(self, *, max_bytes: int, within_seconds: float) -> bytes:
        """The whole body. Raises RequestTooLarge at once, DeadlineExceeded and ClientLeftError."""
        self._is_body_begun = self._is_body_left = True
        try:
            async with asyncio.timeout(within_seconds):
                body = await self._whole_body(max_bytes)
        except TimeoutError as error:
            raise DeadlineExceeded("The request's body did not arrive in time.") from error
        self._is_body_left = False
        return body

    async def _whole_body(self, max_bytes: int) -> bytes:
        if _content_length(self._headers) > max_bytes:
            await self._discard_rest()
            raise _too_large(max_bytes)
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            body += message.get("body", b"")
            if len(body) > max_bytes:
                await self._discard_rest()
                raise _too_large(max_bytes)
            if not message.get("more_body", False):
                return bytes(body)

    async def _discard_rest(self) -> None:
        """Reads a little longer: closing on a client that still sends would reset it before it sees why."""
        num_discarded = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while num_discarded < DISCARD_BYTES:
                    message = await self._receive()
                    num_discarded += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    async def carry(self, work: Awaitable[None]) -> None:
        """Awaits `work`, all that is done for this request, and cancels it when the client has left."""
        try:
            await work
        except asyncio.CancelledError:
            if not self._has_left or self._worker.uncancel() > 0:  # whoever else cancels means all of it
                raise
        finally:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None  # it will hold its own end, and with that us: a circle for the collector

    def watch(self) -> None:
        """From now on, with the body read, the client is seen to leave whether anything is written or not."""
        self._watch = asyncio.create_task(self._watch_client())

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        """Once, whoever notices: a second cancelling would be taken for the server's."""
        if not self._has_left:
            self._has_left = True
            self._worker.cancel()

    # --- out ---------------------------------------------------------------------------------------------

    async def send_json(self, body: bytes, *, status: int = 200, headers: Headers) -> None:
        """A whole response."""
        await self._start(
            status, [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json"), *headers]
        )
        await self._write(body, more=False)

    async def begin(self, headers: Headers, *, status: int = 200) -> None:
        """The head of a response whose body comes in parts (`stream`)."""
        await self._start(status, headers)

    async def begin_stream(self, headers: Headers) -> None:
        """The head of an answer in events."""
        await self._start(
            200,
            [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
                *headers,
            ],
        )

    async def stream(self, frames: bytes, *, more: bool = True) -> None:
        """Part of a streamed response. A client that reads too slowly has left."""
        await self._write(frames, more=more)

    async def send_error(self, error: GatewayError, *, headers: Headers) -> None:
        """The error's own status, or an event when the response has begun already."""
        self.error = error
        if self.status is not None:
            await self._write(error_frame(error_body(error)), more=False)
            return
        closing: Headers = [(b"connection", b"close")] if self._is_body_left else []
        await self.send_json(
            error_body(error), status=error.status, headers=[*error_headers(error), *headers, *closing]
        )

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, body: bytes, *, more: bool) -> None:
        """Who does not read for so long has left. A bare timer: `asyncio.timeout` costs 7 us more a delta."""
        timer = asyncio.get_running_loop().call_later(self._write_timeout_seconds, self._leave)
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            timer.cancel()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _content_length(headers: list[tuple[bytes, bytes]]) -> int:
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is over the limit of {max_bytes} bytes.")
