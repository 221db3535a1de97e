"""The inference routes: one request in, one answer out, streamed or whole.

Raw ASGI, because a framework's handler is not told when the client leaves during a long wait. Thin: it reads,
writes and chooses the status; `gateway.generation` runs the request.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never

from starlette.types import Receive, Scope, Send

from engine.protocol import RequestClass, Usage
from gateway.api.context import RequestContext
from gateway.api.error_response import internal_error
from gateway.api.exchange import ClientLeftError, Exchange
from gateway.api.headers import Headers, rate_limit_headers
from gateway.api.services import Services, services_of
from gateway.api.sse import DONE, PING, ChatFrames, CompletionFrames, Frames
from gateway.errors import GatewayError
from gateway.generation import Admitted, Call, Completed, GenerationEvent, Idle, TextDelta
from gateway.keys.caller import Caller
from gateway.keys.scope import Scope as KeyScope
from gateway.quotas.refusals import limit_name
from gateway.quotas.reservation import Reservation
from gateway.rendering import AnswerHead, chat_answer, completion_answer
from gateway.requests.parse import parse_chat, parse_completion
from gateway.requests.prepare import prepare
from gateway.requests.values import InferenceRequest, PreparedRequest

logger = logging.getLogger(__name__)

# The status is committed late, so that an early refusal gets its own; but proxies want a sign of life.
STATUS_WITHIN_SECONDS: Final = 5.0


class MakeFrames(Protocol):
    """Begins the frames of one answer."""

    def __call__(self, head: AnswerHead, *, include_usage: bool) -> Frames:
        """The frames."""


class MakeAnswer(Protocol):
    """Writes one whole answer."""

    def __call__(self, head: AnswerHead, *, text: str, finish_reason: str, usage: Usage) -> bytes:
        """The body."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What differs between the two routes; all else is one path."""

    route: str
    id_prefix: str
    parse: Callable[[bytes], InferenceRequest]
    frames: MakeFrames
    answer: MakeAnswer


CHAT: Final = Dialect(
    route="/v1/chat/completions",
    id_prefix="chatcmpl-",
    parse=parse_chat,
    frames=ChatFrames,
    answer=chat_answer,
)
COMPLETIONS: Final = Dialect(
    route="/v1/completions",
    id_prefix="cmpl-",
    parse=parse_completion,
    frames=CompletionFrames,
    answer=completion_answer,
)


@dataclass(kw_only=True)
class Progress:
    """How far one exchange has come, for its headers and its log line."""

    call_id: str
    caller: Caller | None = None
    completed: Completed | None = None
    rate_limits: Headers = field(default_factory=list)
    limited_by: str | None = None  # the budget that shortens the output

    @property
    def headers(self) -> Headers:
        """Who the answer is for and what is left of its limits, as far as that is known."""
        if self.caller is None:
            return []
        shortened = (
            [] if self.limited_by is None else [(b"x-sluice-output-limited-by", self.limited_by.encode())]
        )
        return [(b"openai-organization", _latin(self.caller.tenant_name)), *self.rate_limits, *shortened]


class InferenceEndpoint:
    """An ASGI application for one of the routes."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        services = services_of(scope)
        exchange = Exchange(
            scope, receive, send, write_timeout_seconds=services.settings.write_timeout_seconds
        )
        progress = Progress(call_id=self._dialect.id_prefix + secrets.token_hex(16))
        try:
            await exchange.carry(self._respond(services, exchange, progress))
        finally:
            self._log(services, exchange, progress)

    async def _respond(self, services: Services, exchange: Exchange, progress: Progress) -> None:
        try:
            progress.caller = await services.keys.authenticate(exchange.context.authorization)
            progress.caller.require(KeyScope.INFERENCE)
            body = await exchange.read_body(
                max_bytes=services.settings.max_body_bytes,
                within_seconds=services.settings.read_timeout_seconds,
            )
        except Exception as error:
            await _fail(exchange, progress, error)
            return
        exchange.watch()
        await self._answer(services, exchange, progress, progress.caller, body)

    async def _answer(
        self, services: Services, exchange: Exchange, progress: Progress, caller: Caller, body: bytes
    ) -> None:
        try:
            request = self._dialect.parse(body)
            model = services.catalogue.find(request.model, allowed=caller.models)
            prepared = await prepare(request, model, cache_group=caller.cache_group)
            call = _call(services, exchange.context, request, call_id=progress.call_id)
            events = services.generation.run(call, prepared, model=model, caller=caller)
            async with aclosing(events):
                write = self._write_stream if request.stream else self._write_whole
                await write(exchange, progress, prepared, events)
        except Exception as error:
            await _fail(exchange, progress, error)

    async def _write_whole(
        self,
        exchange: Exchange,
        progress: Progress,
        prepared: PreparedRequest,
        events: AsyncGenerator[GenerationEvent],
    ) -> None:
        texts: list[str] = []
        async for event in events:
            match event:
                case Admitted():
                    progress.rate_limits = _rate_limits(event)
                case TextDelta():
                    texts.append(event.text)
                case Idle():
                    pass
                case Completed():
                    progress.completed, progress.limited_by = event, event.limited_by
                    body = self._dialect.answer(
                        _head(progress, prepared.request),
                        text="".join(texts),
                        finish_reason=event.reason,
                        usage=event.usage,
                    )
                    await exchange.send_json(body, headers=progress.headers)
                case _:
                    assert_never(event)

    async def _write_stream(
        self,
        exchange: Exchange,
        progress: Progress,
        prepared: PreparedRequest,
        events: AsyncGenerator[GenerationEvent],
    ) -> None:
        request = prepared.request
        frames = self._dialect.frames(_head(progress, request), include_usage=request.include_usage)
        pending = frames.first()  # goes out with the first text
        async for event in events:
            match event:
                case Admitted():
                    progress.rate_limits = _rate_limits(event)
                    progress.limited_by = _known_limit(event.reservation)
                    continue
                case TextDelta():
                    pending += frames.text(event.text)
                case Idle():
                    await _begin(exchange, progress)
                    await exchange.stream(PING)
                    continue
                case Completed():
                    progress.completed = event
                    pending += frames.last(event.reason, event.usage, limited_by=event.limited_by) + DONE
                case _:
                    assert_never(event)
            await _begin(exchange, progress)
            await exchange.stream(pending, more=not isinstance(event, Completed))
            pending = b""

    def _log(self, services: Services, exchange: Exchange, progress: Progress) -> None:
        status = str(exchange.status or "client left")
        services.metrics.responses.labels(self._dialect.route, status).inc()
        fields = _log_fields(exchange, progress) | {"route": self._dialect.route, "status": exchange.status}
        if (error := exchange.error) is not None:
            fields |= {"error": error.code or error.type, "detail": error.message}
            fields |= {"reason": error.reason} if error.reason is not None else {}
            fields |= {"wait_reason": error.wait_reason} if error.wait_reason is not None else {}
            _count_refusal(services, error, progress)
        elif (completed := progress.completed) is None:
            fields["error"] = "client_left"
        else:
            fields |= {
                "finish_reason": completed.reason,
                "prompt_tokens": completed.usage.prompt_tokens,
                "cached_tokens": completed.usage.cached_tokens,
                "completion_tokens": completed.usage.completion_tokens,
            }
            fields |= {"limited_by": completed.limited_by} if completed.limited_by is not None else {}
        logger.info("request", extra=fields)


def _count_refusal(services: Services, error: GatewayError, progress: Progress) -> None:
    """Under the same reason that the response and the log line give."""
    if error.reason is not None and progress.caller is not None:
        tenant = services.metrics.tenants.fold(progress.caller.tenant_name)
        services.metrics.refused.labels(error.reason, tenant).inc()


async def _begin(exchange: Exchange, progress: Progress) -> None:
    if exchange.status is None:
        await exchange.begin_stream(progress.headers)


async def _fail(exchange: Exchange, progress: Progress, error: Exception) -> None:
    """Tells the caller of an error, if it is still there; of an unforeseen one, only that it was ours."""
    if isinstance(error, ClientLeftError):
        return
    if not isinstance(error, GatewayError):
        logger.error("unexpected error", exc_info=error, extra=_log_fields(exchange, progress))
        error = internal_error(exchange.context.request_id)
    await exchange.send_error(error, headers=progress.headers)


def _call(services: Services, context: RequestContext, request: InferenceRequest, *, call_id: str) -> Call:
    """The client's own patience binds too: until the first token of a stream, or for the whole answer."""
    total = context.arrived_at + services.settings.request_timeout_seconds
    patience = context.arrived_at + (
        context.read_timeout_seconds or services.settings.request_timeout_seconds
    )
    return Call(
        id=call_id,
        trace_id=context.trace_id,
        arrived_at=context.arrived_at,
        deadline=total if request.stream else min(total, patience),
        first_token_deadline=min(total, patience),
        idle_first_seconds=min(STATUS_WITHIN_SECONDS, services.settings.keepalive_seconds),
        idle_seconds=services.settings.keepalive_seconds,
        is_streamed=request.stream,
    )


def _head(progress: Progress, request: InferenceRequest) -> AnswerHead:
    tier = "flex" if request.request_class is RequestClass.OFFLINE else "default"
    return AnswerHead(id=progress.call_id, created=int(time.time()), model=request.model, service_tier=tier)


def _rate_limits(admitted: Admitted) -> Headers:
    reservation = admitted.reservation
    return rate_limit_headers(requests=reservation.requests, tokens=reservation.tokens)


def _known_limit(reservation: Reservation) -> str | None:
    """What a stream's headers can tell: too little was left for even the first part of its output."""
    return None if reservation.limited_by is None else limit_name(reservation.limited_by)


def _log_fields(exchange: Exchange, progress: Progress) -> dict[str, object]:
    now = asyncio.get_running_loop().time()
    return {
        "trace_id": exchange.context.trace_id,
        "request_id": exchange.context.request_id,
        "generation_id": progress.call_id,
        "tenant": None if progress.caller is None else progress.caller.tenant_name,
        "duration_ms": round((now - exchange.context.arrived_at) * 1000, 1),
    }


def _latin(text: str) -> bytes:
    return text.encode("latin-1", errors="replace")
