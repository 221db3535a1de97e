"""One engine: a WebSocket kept up with back-off, the requests it holds, and what it last said of itself.

It knows the wire and no text, no tenants' limits and no HTTP. It retries connections, never requests.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, assert_never
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from engine.protocol import (
    BURSTS_SINCE_MINOR,
    DEAD_AFTER_SECONDS,
    EXTENDS_SINCE_MINOR,
    MAX_FRAME_BYTES,
    MOST_IN_BURST,
    PING_INTERVAL_SECONDS,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Cancel,
    Configure,
    EngineDescription,
    EngineMessage,
    EngineStatus,
    Extend,
    GatewayMessage,
    GenerateRequest,
    Goodbye,
    Hello,
    ProtocolError,
    Report,
    ReportQuery,
    RequestClass,
    SequenceEvent,
    StepEvents,
    TokenDelta,
    Window,
    decode_from_engine,
    encode,
    encode_burst,
)
from gateway.engines.stream import EngineLost, EngineStream

logger = logging.getLogger(__name__)

FIRST_DELAY_SECONDS: Final = 0.1
LONGEST_DELAY_SECONDS: Final = 2.0
DESCRIPTION_TIMEOUT_SECONDS: Final = 30.0


class EngineUnreachableError(Exception):
    """The engine is not connected, or was lost while it was asked."""


class EngineIncompatibleError(Exception):
    """The peer speaks another major version, or serves something this gateway cannot turn into text."""


@dataclass(frozen=True, kw_only=True)
class EngineAddress:
    """Where one engine listens. `host` is one of the addresses that the URL's host name may stand for."""

    url: str
    host: str | None = None

    @property
    def name(self) -> str:
        """How logs and pages call this engine."""
        return self.url if self.host in (None, urlsplit(self.url).hostname) else f"{self.url} ({self.host})"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who connects: `epoch` names one life of this process, and never repeats; an observer only looks."""

    replica: str
    epoch: int
    shared_secret: str
    observer: bool = False


async def _accept_any(_: EngineDescription) -> None:
    return None


def _ignore(*_: object) -> None:
    return None


def _nothing_to_configure(_: str) -> Configure | None:
    return None


class EngineClient:
    """The connection to one engine. Call `start` once; `stop` ends it and every stream it carries.

    `on_description` is awaited before the engine counts as connected, and may raise EngineIncompatibleError.
    `configuration_of` says what an engine of a model is told before its first request, if anything.
    `on_status` gets every EngineStatus. `on_change` is called whenever there may be more, or less, room.
    """

    def __init__(
        self,
        address: EngineAddress,
        identity: Identity,
        *,
        on_description: Callable[[EngineDescription], Awaitable[None]] = _accept_any,
        configuration_of: Callable[[str], Configure | None] = _nothing_to_configure,
        on_status: Callable[[EngineStatus], None] = _ignore,
        on_change: Callable[[], None] = _ignore,
    ) -> None:
        self.address = address
        self.connected = False
        self.description: EngineDescription | None = None
        self.status: EngineStatus | None = None
        self._identity = identity
        self._on_description = on_description
        self._configuration_of = configuration_of
        self._on_status = on_status
        self._on_change = on_change
        self._window = Window(interactive=0, offline=0)
        self._streams: dict[str, EngineStream] = {}
        self._open_by_tenant: dict[RequestClass, Counter[str]] = _no_tenants()
        self._reports: dict[tuple[str, int], asyncio.Future[Report]] = {}
        self._outbox: asyncio.Queue[GatewayMessage] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to connect, and to connect again whenever the connection is lost."""
        assert self._task is None
        self._task = asyncio.create_task(self._run(), name=f"engine {self.address.name}")

    async def stop(self) -> None:
        """Closes the connection. Open streams get EngineLost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        delay = FIRST_DELAY_SECONDS
        while True:
            was_connected, reason = await self._connect_once()
            if was_connected:
                delay = FIRST_DELAY_SECONDS
            level = logging.WARNING if was_connected or delay == FIRST_DELAY_SECONDS else logging.DEBUG
            logger.log(level, "engine %s is not connected: %s", self.address.name, reason)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is no secret
            delay = min(delay * 2, LONGEST_DELAY_SECONDS)

    async def _connect_once(self) -> tuple[bool, str]:
        """One connection from its beginning to its end: whether it ever served, and why it ended."""
        reason = "the connection was closed"
        was_connected = False
        try:
            async with self._open() as connection:
                await self._greet(connection)
                was_connected = True
                await self._converse(connection)
        except (OSError, WebSocketException, ProtocolError, EngineIncompatibleError) as error:
            reason = str(error) or type(error).__name__
        except Exception:  # a bug in a hook must not cost the engine for ever
            logger.exception("engine %s: unexpected error", self.address.name)
            reason = "an unexpected error"
        finally:
            self._lose()
        return was_connected, reason

    def _open(self) -> connect:
        return connect(
            self.address.url,
            host=self.address.host or urlsplit(self.address.url).hostname,
            additional_headers={"Authorization": f"Bearer {self._identity.shared_secret}"},
            max_size=MAX_FRAME_BYTES,
            ping_interval=PING_INTERVAL_SECONDS,
            ping_timeout=DEAD_AFTER_SECONDS - PING_INTERVAL_SECONDS,
            close_timeout=1.0,
            compression=None,  # token ids on a local network: deflating costs more than it saves
            proxy=None,
        )

    async def _greet(self, connection: ClientConnection) -> None:
        identity = self._identity
        hello = Hello(
            major=PROTOCOL_MAJOR,
            minor=PROTOCOL_MINOR,
            replica=identity.replica,
            epoch=identity.epoch,
            observer=identity.observer,
        )
        await connection.send(encode(hello))
        async with asyncio.timeout(DESCRIPTION_TIMEOUT_SECONDS):
            description = _as_description(decode_from_engine(_binary(await connection.recv())))
        await self._on_description(description)
        self.description = description
        self._window = description.window
        if (configuration := self._configuration_of(description.model)) is not None:
            self._outbox.put_nowait(configuration)  # no await from here on: nothing newer can be missed
        self.connected = True
        logger.info("engine %s is connected and serves %s", self.address.name, description.model)
        self._on_change()

    async def _converse(self, connection: ClientConnection) -> None:
        writer = asyncio.create_task(self._write(connection))
        try:
            async for frame in connection:
                self._receive(decode_from_engine(_binary(frame)))
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, connection: ClientConnection) -> None:
        try:
            while True:
                for frame in self._frames(await self._untold()):
                    await connection.send(frame)
        except WebSocketException:
            return  # the reader notices it, too
        except Exception:  # without a writer every later request would wait in vain
            logger.exception("engine %s: a message cannot be sent", self.address.name)
            await connection.close()

    async def _untold(self) -> list[GatewayMessage]:
        """All that waits to be sent, once something does."""
        messages = [await self._outbox.get()]
        while not self._outbox.empty():
            messages.append(self._outbox.get_nowait())
        return messages

    def _frames(self, messages: list[GatewayMessage]) -> list[bytes]:
        if len(messages) == 1 or not self._speaks(BURSTS_SINCE_MINOR):
            return [encode(message) for message in messages]
        starts = range(0, len(messages), MOST_IN_BURST)
        return [encode_burst(messages[start : start + MOST_IN_BURST]) for start in starts]

    def _lose(self) -> None:
        self.connected = False
        self.status = None
        self._outbox = asyncio.Queue()
        self._open_by_tenant = _no_tenants()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.push(EngineLost())
        reports, self._reports = self._reports, {}
        for report in reports.values():
            if not report.done():
                report.set_exception(EngineUnreachableError(self.address.name))
        self._on_change()

    # --- configuration -----------------------------------------------------------------------------------

    def configure(self, message: Configure) -> None:
        """Tells the engine what its operators want. One that is not connected hears the newest when it is."""
        if self.connected:
            self._outbox.put_nowait(message)

    # --- requests ----------------------------------------------------------------------------------------

    @property
    def num_open(self) -> int:
        """Requests of ours that this engine has and has not ended."""
        return len(self._streams)

    def room(self, request_class: RequestClass) -> int:
        """How many more requests of a class the engine takes from us now; 0 unless it can make progress."""
        return max(0, self.granted(request_class) - self._open_by_tenant[request_class].total())

    def newcomers(self, request_class: RequestClass, tenants: Iterable[str]) -> list[str]:
        """Those of `tenants`, in their order, that may each have one request here beyond the window.

        They have none here, so whoever fills the window would keep them from the engine's own fair order. All
        that is beyond the window is at most as much as the window.
        """
        present = self._open_by_tenant[request_class]
        num_most = max(0, 2 * self.granted(request_class) - present.total())
        return list(islice((tenant for tenant in tenants if tenant not in present), num_most))

    def granted(self, request_class: RequestClass) -> int:
        """The window of a class; 0 unless the engine can make progress."""
        if not self.connected or (
            self.status is not None and (self.status.draining or not self.status.healthy)
        ):
            return 0
        return self._window.interactive if request_class is RequestClass.INTERACTIVE else self._window.offline

    def submit(self, stream: EngineStream) -> None:
        """Hands the stream's request over without waiting; from now on the engine's events go to the stream.

        Raises EngineUnreachableError; nothing was sent then.
        """
        request = stream.request
        if not self.connected:
            raise EngineUnreachableError(self.address.name)
        assert request.id not in self._streams, f"{request.id} is at this engine already"
        self._streams[request.id] = stream
        self._open_by_tenant[request.request_class][request.tenant] += 1
        self._outbox.put_nowait(request if self._speaks(EXTENDS_SINCE_MINOR) else _paid_part(request))

    def _speaks(self, minor: int) -> bool:
        """Whether the engine knows what came with a minor version of the protocol."""
        return self.description is not None and self.description.minor >= minor

    def extend(self, request_id: str, *, paid_tokens: int, is_last: bool) -> None:
        """Tells the engine how much of a request's output is paid for. Unknown ids are ignored."""
        if request_id in self._streams and self._speaks(EXTENDS_SINCE_MINOR):
            self._outbox.put_nowait(Extend(request_id, paid_tokens, is_last))

    def cancel(self, request_id: str) -> None:
        """Asks the engine to end a request; its stream still gets its last event. Unknown ids are ignored."""
        if request_id in self._streams:
            self._outbox.put_nowait(Cancel(request_id))

    async def report_ended(self, *, replica: str, epoch: int) -> Report:
        """Ends a gateway's life at the engine; what was done for it. Raises EngineUnreachableError."""
        if not self.connected:
            raise EngineUnreachableError(self.address.name)
        key = (replica, epoch)
        if key not in self._reports:
            self._reports[key] = asyncio.get_running_loop().create_future()
            self._outbox.put_nowait(ReportQuery(replica=replica, epoch=epoch, fence=True))
        return await asyncio.shield(self._reports[key])

    # --- what the engine says ----------------------------------------------------------------------------

    def _receive(self, message: EngineMessage) -> None:
        match message:
            case StepEvents():
                num_open = len(self._streams)
                for event in message.events:
                    self._deliver(event)
                if len(self._streams) < num_open:
                    self._on_change()
            case EngineStatus():
                self.status = message
                self._window = message.window
                self._on_status(message)
                self._on_change()
            case Report():
                self._answer(message)
            case EngineDescription():
                raise ProtocolError("a second description on one connection")
            case Goodbye():
                raise ProtocolError(f"the engine closes the connection: {message.reason}")
            case _:
                assert_never(message)

    def _deliver(self, event: SequenceEvent) -> None:
        if isinstance(event, TokenDelta):
            if (stream := self._streams.get(event.id)) is not None:
                stream.push(event)
        elif (stream := self._streams.pop(event.id, None)) is not None:
            _count_down(self._open_by_tenant[stream.request.request_class], stream.request.tenant)
            stream.push(event)

    def _answer(self, report: Report) -> None:
        waiter = self._reports.pop((report.replica, report.epoch), None)
        if waiter is not None and not waiter.done():
            waiter.set_result(report)


def _no_tenants() -> dict[RequestClass, Counter[str]]:
    return {request_class: Counter() for request_class in RequestClass}


def _count_down(counts: Counter[str], tenant: str) -> None:
    """One fewer; whoever has none is not in `counts`."""
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]


def _paid_part(request: GenerateRequest) -> GenerateRequest:
    """For an engine that cannot wait for payment: the answer ends where the first part of it does."""
    if not request.paid_tokens:
        return request
    sampling = msgspec.structs.replace(request.sampling, max_tokens=request.paid_tokens)
    return msgspec.structs.replace(request, sampling=sampling)


def _binary(frame: str | bytes) -> bytes:
    if isinstance(frame, str):
        raise ProtocolError("a text frame; every message is binary")
    return frame


def _as_description(message: EngineMessage) -> EngineDescription:
    if isinstance(message, Goodbye):
        raise EngineIncompatibleError(message.reason)
    if not isinstance(message, EngineDescription):
        raise ProtocolError("the first frame of an engine must be its description")
    if message.major != PROTOCOL_MAJOR:
        raise EngineIncompatibleError(
            f"it speaks protocol version {message.major}, this gateway speaks {PROTOCOL_MAJOR}"
        )
    return message
