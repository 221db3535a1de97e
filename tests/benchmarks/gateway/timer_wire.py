"""The timer as an engine: the real wire on a real WebSocket, with the engine's own outbox, and no steps.

The step loop would be measured, too: it makes a request wait for the step that runs, and takes the processor
for planning. Here an answer comes when its timer says so.
"""

import asyncio
from contextlib import suppress
from typing import Final, assert_never

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from engine.outbox import Outbox
from engine.protocol import (
    MAX_FRAME_BYTES,
    Cancel,
    Configure,
    EngineDescription,
    Extend,
    Finished,
    FinishReason,
    GatewayMessage,
    GenerateRequest,
    Hello,
    Report,
    ReportQuery,
    TokenDelta,
    Usage,
    Window,
    decode_from_gateway,
    encode,
)
from tests.benchmarks.gateway.timer import Timed, Timer
from tests.builders.engine_messages import engine_description, engine_limits, engine_status, token_ids_of

STATUS_SECONDS: Final = 1.0
ALPHABET: Final = token_ids_of("abcdefghijklmnopqrstuvwxyz")
ROOM: Final = Window(interactive=4_096, offline=4_096)  # nothing waits in the gateway for room here


class TimerEngine:
    """Serves the model `tiny` to gateways that present the secret."""

    def __init__(self, timer: Timer, *, secret: str) -> None:
        self._timer = timer
        self._authorization = f"Bearer {secret}"
        self._server: Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listens on a free port of the loopback."""
        self._server = await serve(
            self._handle, "127.0.0.1", 0,
            process_request=self._check, max_size=MAX_FRAME_BYTES, compression=None,
        )  # fmt: skip
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def _handle(self, websocket: ServerConnection) -> None:
        connection = _Connection(self._timer)
        sender = asyncio.create_task(connection.send_to(websocket))
        teller = asyncio.create_task(connection.tell_status())
        try:
            async for frame in websocket:
                assert isinstance(frame, bytes)
                connection.obey(frame)
        except ConnectionClosed:
            pass
        finally:
            connection.leave()
            sender.cancel()
            teller.cancel()

    def _check(self, _: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") == self._authorization:
            return None
        return Response(401, "Unauthorized", request.headers.__class__())


class _Connection:
    """One gateway."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._outbox = Outbox()
        self._live: dict[str, _Answer] = {}

    async def send_to(self, websocket: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                for message in await self._outbox.take():
                    await websocket.send(encode(message))

    async def tell_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            self._outbox.set_status(engine_status(window=ROOM, limits=_description().limits))

    def obey(self, frame: bytes) -> None:
        for message in decode_from_gateway(frame):
            self._obey(message)

    def _obey(self, message: GatewayMessage) -> None:
        match message:
            case Hello():
                self._outbox.add_message(_description())
            case GenerateRequest():
                self._live[message.id] = _Answer(self, message)
            case Cancel():
                self._cancel(message.id)
            case ReportQuery():
                self._outbox.add_message(Report(replica=message.replica, epoch=message.epoch, records=()))
            case Configure() | Extend():  # its limits are far away
                pass
            case _:
                assert_never(message)

    def leave(self) -> None:
        for answer in self._live.values():
            self._timer.cancel(answer.timed)

    def _cancel(self, id: str) -> None:
        if (answer := self._live.get(id)) is not None:
            self._timer.cancel(answer.timed)
            self.finish(answer, FinishReason.CANCELLED)

    def begin(self, answer: "_Answer") -> Timed:
        return self._timer.begin(answer.request.sampling.max_tokens, answer.emit)

    def tell(self, answer: "_Answer", token_ids: tuple[int, ...]) -> None:
        self._outbox.add_event(0, TokenDelta(answer.request.id, token_ids))

    def finish(self, answer: "_Answer", reason: FinishReason) -> None:
        request = self._live.pop(answer.request.id).request
        usage = Usage(len(request.prompt_ids), 0, answer.num_sent)
        self._outbox.add_event(0, Finished(request.id, reason, usage))


class _Answer:
    """One request's letters."""

    def __init__(self, connection: _Connection, request: GenerateRequest) -> None:
        self.request = request
        self.num_sent = 0
        self._connection = connection
        self.timed = connection.begin(self)

    def emit(self, count: int, is_last: bool) -> None:
        letters = tuple(ALPHABET[(self.num_sent + place) % len(ALPHABET)] for place in range(count))
        self.num_sent += count
        self._connection.tell(self, letters)
        if is_last:
            self._connection.finish(self, FinishReason.LENGTH)


def _description() -> EngineDescription:
    limits = engine_limits(max_num_seqs=ROOM.interactive, max_model_len=4_096, max_output_len=2_048)
    return engine_description(limits=limits, window=ROOM)
