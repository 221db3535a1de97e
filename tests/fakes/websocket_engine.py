"""An engine of a few lines: speaks the wire over a real WebSocket, answers by a script, computes nothing."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from engine.protocol import (
    MAX_FRAME_BYTES,
    Cancel,
    Configure,
    EngineDescription,
    EngineMessage,
    Finished,
    FinishReason,
    GatewayMessage,
    GenerateRequest,
    Hello,
    Report,
    ReportQuery,
    SequenceEvent,
    StepEvents,
    TokenDelta,
    Usage,
    decode_from_gateway,
    encode,
)

Script = Callable[["WebSocketEngine", GenerateRequest], None]
Obey = Callable[["WebSocketEngine", Configure], None]


def take_note(engine: "WebSocketEngine", configuration: Configure) -> None:
    """Takes a configuration and says nothing."""


class WebSocketEngine:
    """Serves on a free port of the loopback. `script` is called for every request and answers with `send`.

    `obey` is called for every configuration. `received` holds every request, `cancelled` the ids of every
    cancel, `configured` every configuration, `heard` every message; `changed` is set on each.
    """

    def __init__(self, description: EngineDescription, script: Script, *, secret: str = "secret") -> None:
        self.description = description
        self.script = script
        self.obey: Obey = take_note
        self.received: list[GenerateRequest] = []
        self.cancelled: list[str] = []
        self.configured: list[Configure] = []
        self.heard: list[GatewayMessage] = []
        self.frame_sizes: list[int] = []  # messages of each frame heard
        self.hellos: list[Hello] = []
        self.changed = asyncio.Condition()
        self._secret = secret
        self._outbox: asyncio.Queue[EngineMessage] = asyncio.Queue()
        self._server: Server | None = None
        self._connections: set[ServerConnection] = set()
        self.port = 0

    @property
    def url(self) -> str:
        """Where gateways connect."""
        return f"ws://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens; on the same port as before when it was stopped."""
        self._server = await serve(
            self._handle, "127.0.0.1", self.port, process_request=self._check, max_size=MAX_FRAME_BYTES
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Drops every connection at once, as a killed process does."""
        assert self._server is not None
        self._server.close(close_connections=False)
        for connection in list(self._connections):
            connection.transport.abort()
        await self._server.wait_closed()

    def send(self, *events: SequenceEvent) -> None:
        """Puts events into one frame."""
        self._outbox.put_nowait(StepEvents(step=0, events=events))

    def send_message(self, message: EngineMessage) -> None:
        """Sends any message."""
        self._outbox.put_nowait(message)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until something that was received makes `condition` true."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(condition)

    def _check(self, _: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") == f"Bearer {self._secret}":
            return None
        return Response(401, "Unauthorized", request.headers.__class__())

    async def _handle(self, connection: ServerConnection) -> None:
        self._connections.add(connection)
        self._outbox = asyncio.Queue()
        writer = asyncio.create_task(self._write(connection, self._outbox))
        try:
            async for frame in connection:
                assert isinstance(frame, bytes)
                await self._receive(frame)
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _receive(self, frame: bytes) -> None:
        messages = decode_from_gateway(frame)
        self.frame_sizes.append(len(messages))
        for message in messages:
            await self._hear(message)

    async def _hear(self, message: GatewayMessage) -> None:
        async with self.changed:
            self.heard.append(message)
            match message:
                case Hello():
                    self.hellos.append(message)
                    self.send_message(self.description)
                case GenerateRequest():
                    self.received.append(message)
                    self.script(self, message)
                case Configure():
                    self.configured.append(message)
                    self.obey(self, message)
                case Cancel():
                    self.cancelled.append(message.id)
                case ReportQuery():
                    self.send_message(Report(replica=message.replica, epoch=message.epoch, records=()))
            self.changed.notify_all()

    async def _write(self, connection: ServerConnection, outbox: asyncio.Queue[EngineMessage]) -> None:
        with suppress(ConnectionClosed):
            while True:
                await connection.send(encode(await outbox.get()))


def answer(*token_ids: int, reason: FinishReason = FinishReason.STOP) -> Script:
    """A script that sends one token per frame and then finishes."""

    def script(engine: WebSocketEngine, request: GenerateRequest) -> None:
        for token_id in token_ids:
            engine.send(TokenDelta(request.id, (token_id,)))
        engine.send(finished(request, reason, len(token_ids)))

    return script


def hold(engine: WebSocketEngine, request: GenerateRequest) -> None:
    """A script that takes a request and never answers."""


def finished(request: GenerateRequest, reason: FinishReason, num_output_tokens: int) -> Finished:
    """The last event of a request that ran."""
    usage = Usage(prompt_tokens=len(request.prompt_ids), cached_tokens=0, completion_tokens=num_output_tokens)
    return Finished(request.id, reason, usage)
