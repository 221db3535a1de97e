"""A client's side of HTTP/1.1, as cheap as Python allows: a parser in C, and no task for a request."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import httptools

from tests.benchmarks.gateway.exchange import Exchange
from tests.benchmarks.gateway.http_request import Address


class Connection(asyncio.Protocol):
    """A connection that is kept; one request at a time. `on_free` is told when it can take the next."""

    def __init__(self, on_free: Callable[["Connection"], None]) -> None:
        self._on_free = on_free
        self._exchange: Exchange | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, exchange: Exchange) -> None:
        """Sends the request; the exchange hears the rest."""
        self._exchange = exchange
        exchange.started_at = time.monotonic()
        self._transport.write(exchange.shot.request)
        leave = exchange.shot.leave
        if leave is not None and leave.after_seconds is not None:
            loop = asyncio.get_running_loop()
            self._leaving = loop.call_later(leave.after_seconds, self._leave)

    @property
    def is_open(self) -> bool:
        """Whether the server still keeps it, as far as is known."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Ends a connection that carries nothing."""
        self._transport.close()

    # --- asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self._exchange is not None and self._exchange.wants_to_leave:
            self._leave()

    def connection_lost(self, _: Exception | None) -> None:
        exchange = self._finished()
        if exchange is not None:
            exchange.lose(time.monotonic())

    # --- the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._is_stream = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type" and value.startswith(b"text/event-stream"):
            self._is_stream = True

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()
            self._exchange.is_stream = self._is_stream

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.take(body, time.monotonic())

    def on_message_complete(self) -> None:
        if self._exchange is not None and self._exchange.wants_to_leave:
            return  # at the very end: it goes when the read is over
        exchange = self._finished()
        if exchange is None:
            return
        if self._parser.should_keep_alive():
            self._on_free(self)
        else:
            self._transport.close()
        exchange.complete(time.monotonic())

    # --- leaving -----------------------------------------------------------------------------------------

    def _leave(self) -> None:
        exchange = self._finished()
        if exchange is None:
            return
        assert exchange.shot.leave is not None
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, exchange.shot.leave.how.value)
        self._transport.abort()
        exchange.leave(time.monotonic())

    def _finished(self) -> Exchange | None:
        """The exchange, which is this connection's no longer."""
        exchange, self._exchange = self._exchange, None
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        return exchange


class Pool:
    """Connections to one server: as many as are wanted at once, the latest used first."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._free: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def open(self, count: int) -> None:
        """Makes so many ahead of time."""
        self._free += [await self._connect() for _ in range(count)]

    def send(self, exchange: Exchange) -> None:
        """Sends at once, or as soon as a new connection is there."""
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                connection.ask(exchange)
                return
        task = asyncio.get_running_loop().create_task(self._send_on_new(exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def close(self) -> None:
        """Ends those that carry nothing."""
        for connection in self._free:
            connection.close()

    async def _send_on_new(self, exchange: Exchange) -> None:
        try:
            connection = await self._connect()
        except OSError:
            exchange.lose(time.monotonic())
        else:
            connection.ask(exchange)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self._free.append), self._address.host, self._address.port
        )
        return connection
