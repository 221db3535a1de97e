"""The engine's door: WebSocket connections of gateways, and health and metrics over HTTP on the same port.

Turns frames into the loop's commands and the loop's outcomes into frames. Knows no tensors.
"""

import asyncio
import hmac
import logging
import socket
import time
import uuid
from http import HTTPStatus
from typing import assert_never

from prometheus_client import CollectorRegistry, generate_latest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from engine import protocol, self_report, translation
from engine.connection import Connection
from engine.core.limits import LimitError
from engine.core.outcome import Outcome
from engine.desired_state import DesiredState
from engine.ledger import Ledger
from engine.loop import EngineLoop
from engine.self_report import ServedModel

logger = logging.getLogger(__name__)

STATUS_SECONDS = 1.0
HELLO_SECONDS = 5.0
NOTHING_USED = protocol.Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)
REPORT_SECONDS = 5.0


class EngineServer:
    """Serves one loop to many gateways."""

    def __init__(
        self,
        *,
        model: ServedModel,
        desired_state: DesiredState,
        shared_secret: str,
        registry: CollectorRegistry,
    ) -> None:
        self._model = model
        self._desired_state = desired_state
        self._seen_revision = 0
        self._config_error: str | None = None
        self._instance = uuid.uuid4().hex
        self._authorization = f"Bearer {shared_secret}".encode()
        self._registry = registry
        self._connections: set[Connection] = set()
        self._leaving: set[Connection] = set()  # closed, but their requests are not all over yet
        self._ledger = Ledger()
        self._fenced_epochs: set[int] = set()
        self._reports: set[asyncio.Task[None]] = set()
        self._started_at = time.monotonic()
        self._is_draining = False
        self._loop: EngineLoop | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._status_task: asyncio.Task[None] | None = None

    # --- life ------------------------------------------------------------------------------------------

    async def start(self, loop: EngineLoop, listener: socket.socket) -> None:
        """Begins to serve `loop` on a bound socket."""
        self._loop = loop
        self._event_loop = asyncio.get_running_loop()
        self._server = await serve(
            self._handle,
            sock=listener,
            process_request=self._answer_http,
            compression=None,  # token ids on a local link: compressing costs more than it saves
            max_size=protocol.MAX_FRAME_BYTES,
            ping_interval=protocol.PING_INTERVAL_SECONDS,
            ping_timeout=protocol.DEAD_AFTER_SECONDS - protocol.PING_INTERVAL_SECONDS,
        )
        self._status_task = asyncio.create_task(self._tell_status())

    async def drain(self, seconds: float) -> None:
        """Refuses what comes new and waits, at most `seconds`, until nothing runs."""
        self._is_draining = True
        self._engine_loop.drain()
        waiting = [connection.is_idle.wait() for connection in self._connections | self._leaving]
        try:
            await asyncio.wait_for(asyncio.gather(*waiting), seconds)
        except TimeoutError:
            logger.warning("stopping with requests still running", extra={"drain_seconds": seconds})

    async def stop(self) -> None:
        """Closes every connection and the port."""
        if self._status_task is not None:
            self._status_task.cancel()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    # --- the loop's threads ----------------------------------------------------------------------------

    def publish(self, step: int, outcomes: list[Outcome]) -> None:
        """Takes what a step brought; called on the loop's publishing thread and returns at once."""
        assert self._event_loop is not None
        self._event_loop.call_soon_threadsafe(self._deliver, step, outcomes)

    # --- the event loop --------------------------------------------------------------------------------

    def _deliver(self, step: int, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            connection = outcome.sequence.owner
            assert isinstance(connection, Connection)
            if connection in self._connections:
                connection.outbox.add_event(step, translation.event_of(outcome))
            if translation.is_last(outcome):
                self._close_account(connection, outcome)
                if connection.is_idle.is_set():
                    self._leaving.discard(connection)

    def _close_account(self, connection: Connection, outcome: Outcome) -> None:
        sequence, usage = outcome.sequence, translation.usage_of(outcome.sequence)
        account = connection.end_request(sequence.id)
        record = protocol.RequestRecord(id=sequence.id, usage=usage, account=account)
        self._ledger.add(connection.hello.epoch, record)
        logger.info(
            "request over",
            extra={
                "request_id": sequence.id,
                "trace_id": sequence.trace_id,
                "tenant": sequence.tenant,
                "end": translation.end_of(outcome),
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
            },
        )

    async def _handle(self, websocket: ServerConnection) -> None:
        hello = await self._hello(websocket)
        if hello is None:
            return
        connection = Connection(hello)
        self._connections.add(connection)
        logger.info("gateway connected", extra={"replica": hello.replica, "epoch": hello.epoch})
        sender = asyncio.create_task(self._send(websocket, connection))
        try:
            await self._receive(websocket, connection)
        finally:
            sender.cancel()
            self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """Ends everything a lost connection carried. It does not wait: a loop that crashed ends nothing."""
        hello = connection.hello
        logger.info("gateway left", extra={"replica": hello.replica, "cancelled": connection.num_live})
        self._connections.discard(connection)
        if not connection.is_idle.is_set():
            self._leaving.add(connection)
        self._engine_loop.disown(connection)

    async def _hello(self, websocket: ServerConnection) -> protocol.Hello | None:
        """The first frame, answered with the description; a stranger is told why and left."""
        try:
            frame = await asyncio.wait_for(websocket.recv(), HELLO_SECONDS)
            (hello, *_) = protocol.decode_from_gateway(frame if isinstance(frame, bytes) else frame.encode())
        except (TimeoutError, ConnectionClosed, protocol.ProtocolError) as error:
            logger.warning("a connection did not say hello", extra={"error": str(error)})
            return None
        if not isinstance(hello, protocol.Hello) or hello.major != protocol.PROTOCOL_MAJOR:
            reason = f"this engine speaks protocol {protocol.PROTOCOL_MAJOR}.{protocol.PROTOCOL_MINOR}"
            await websocket.send(protocol.encode(protocol.Goodbye(reason=reason)))
            return None
        await websocket.send(
            protocol.encode(
                self_report.description_of(
                    self._model, limits=self._engine_loop.snapshot.limits, window=self._window()
                )
            )
        )
        return hello

    async def _receive(self, websocket: ServerConnection, connection: Connection) -> None:
        try:
            async for frame in websocket:
                frame = frame if isinstance(frame, bytes) else frame.encode()
                for message in protocol.decode_from_gateway(frame):
                    self._obey(connection, message)
        except protocol.ProtocolError as error:
            await websocket.send(protocol.encode(protocol.Goodbye(reason=str(error))))
        except ConnectionClosed:
            pass  # the handler's end deals with it

    def _obey(self, connection: Connection, message: protocol.GatewayMessage) -> None:
        match message:
            case protocol.GenerateRequest():
                self._generate(connection, message)
            case protocol.Configure():
                self._configure(connection, message)
            case protocol.Extend(id, paid_tokens, is_last):
                self._engine_loop.extend(connection, id, paid_tokens, is_last=is_last)
            case protocol.Cancel(id):
                self._engine_loop.cancel(connection, id)
            case protocol.ReportQuery():
                self._report(connection, message)
            case protocol.Hello():
                raise protocol.ProtocolError("hello was said already")
            case _:
                assert_never(message)

    def _configure(self, connection: Connection, message: protocol.Configure) -> None:
        """Keeps the highest revision seen; one that contradicts itself changes nothing and is told."""
        if connection.hello.observer or message.revision <= self._seen_revision:
            return
        self._seen_revision = message.revision
        try:
            configuration = self._desired_state.configuration(message)
        except LimitError as error:
            self._config_error = str(error)
            logger.error("revision %d is not in force: %s", message.revision, error)
        else:
            self._config_error = None
            self._engine_loop.configure(configuration)

    def _generate(self, connection: Connection, request: protocol.GenerateRequest) -> None:
        refusal = self._refusal(connection, request)
        if refusal is not None:
            connection.outbox.add_event(0, refusal)
            record = protocol.RequestRecord(id=request.id, usage=NOTHING_USED, account=request.account)
            self._ledger.add(connection.hello.epoch, record)
            return
        connection.add_request(request.id, request.account)
        sequence = translation.sequence_of(
            request,
            owner=connection,
            eos_token_ids=frozenset(self._model.text.eos_token_ids),
            now=time.monotonic(),
        )
        self._engine_loop.submit(sequence)

    def _refusal(self, connection: Connection, request: protocol.GenerateRequest) -> protocol.Refused | None:
        if connection.hello.observer:
            detail = "an observer may not send requests"
        elif request.epoch in self._fenced_epochs:
            detail = f"epoch {request.epoch} was ended by another gateway"
        elif request.model != self._model.name:
            detail = f"this engine serves {self._model.name}, not {request.model}"
        elif request.adapter is not None:
            detail = "this engine has no adapters"
        elif request.epoch != connection.hello.epoch:
            detail = f"epoch {request.epoch} is not this connection's {connection.hello.epoch}"
        else:
            return None
        reason = protocol.AdmissionReason.INVALID_REQUEST
        return protocol.Refused(id=request.id, reason=reason, detail=detail)

    def _report(self, connection: Connection, query: protocol.ReportQuery) -> None:
        """Answers once everything of that life is over, as it is within a step after its connection went."""
        task = asyncio.create_task(self._report_when_over(connection, query))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    def _fence(self, epoch: int) -> list[Connection]:
        """Ends what a life runs here and takes nothing more of it; the connections that it has, or had."""
        self._fenced_epochs.add(epoch)
        fenced = [each for each in self._connections if each.hello.epoch == epoch]
        for connection in fenced:
            self._engine_loop.disown(connection)
        return fenced

    async def _report_when_over(self, connection: Connection, query: protocol.ReportQuery) -> None:
        fenced = self._fence(query.epoch) if query.fence else []
        left = [each for each in self._leaving if each.hello.epoch == query.epoch]
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                for other in fenced + left:
                    await other.is_idle.wait()
        except TimeoutError:  # better what is known than nothing
            logger.warning("reporting on an epoch that is not over", extra={"epoch": query.epoch})
        records = self._ledger.of_epoch(query.epoch)
        connection.outbox.add_message(
            protocol.Report(replica=query.replica, epoch=query.epoch, records=records)
        )

    async def _send(self, websocket: ServerConnection, connection: Connection) -> None:
        try:
            while True:
                for message in await connection.outbox.take():
                    await websocket.send(protocol.encode(message))
        except ConnectionClosed:
            return
        except Exception:  # a gateway that is told nothing more would wait for ever
            logger.exception("a message cannot be sent", extra={"replica": connection.hello.replica})
            await websocket.close(CloseCode.INTERNAL_ERROR)

    async def _tell_status(self) -> None:
        while True:
            status = self.status()
            for connection in self._connections:
                connection.outbox.set_status(status)
            await asyncio.sleep(STATUS_SECONDS)

    # --- what it says of itself ------------------------------------------------------------------------

    @property
    def _engine_loop(self) -> EngineLoop:
        assert self._loop is not None, "the server was started"
        return self._loop

    def is_healthy(self) -> bool:
        """Whether the loop moves, or has nothing to do."""
        return self._engine_loop.progress.is_healthy(time.monotonic())

    def status(self) -> protocol.EngineStatus:
        """The figures of this second."""
        return self_report.status_of(
            self._engine_loop.snapshot,
            model=self._model,
            instance=self._instance,
            config_revision=self._seen_revision if self._config_error else None,
            config_error=self._config_error,
            unix_time_ahead=time.time() - time.monotonic(),
            window=self._window(),
            is_healthy=self.is_healthy(),
            is_draining=self._is_draining,
            uptime_seconds=time.monotonic() - self._started_at,
        )

    def _window(self) -> protocol.Window:
        num_gateways = sum(not connection.hello.observer for connection in self._connections)
        snapshot = self._engine_loop.snapshot
        return self_report.window_of(snapshot.limits, snapshot.restrictions, num_gateways=num_gateways)

    # --- plain HTTP ------------------------------------------------------------------------------------

    def _answer_http(self, websocket: ServerConnection, request: Request) -> Response | None:
        """Answers /healthz and /metrics; lets a gateway with the shared secret through to the WebSocket."""
        if request.path == "/healthz":
            if self.is_healthy():
                return websocket.respond(HTTPStatus.OK, "ok\n")
            return websocket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "the step counter stands still\n")
        if request.path == "/metrics":
            return websocket.respond(HTTPStatus.OK, generate_latest(self._registry).decode())
        presented = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(presented, self._authorization):
            return websocket.respond(HTTPStatus.UNAUTHORIZED, "the shared secret is missing or wrong\n")
        return None
