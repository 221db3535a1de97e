"""The story of one inference request: reserve, queue, engine, text, settle. Read this file first.

It knows who pays and what was used, and no HTTP. A reservation, once made, is settled exactly once: on the
spot if the engine has said what was used, else by a task that belongs to the process and not to the request,
so that nothing a client does can cancel it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, Protocol

import msgspec
from prometheus_client import Gauge

from engine.protocol import FinishReason, GenerateRequest, RequestClass, Usage
from gateway.answer import NOTHING_USED, Answer
from gateway.cache_namespace import namespace_of_group, namespace_of_tenant
from gateway.dispatch import Dispatcher
from gateway.engines.stream import Interrupted
from gateway.errors import GatewayError, LimitReached
from gateway.extension import Extension
from gateway.keys.caller import Caller
from gateway.metrics import GatewayMetrics
from gateway.quotas.reservation import Demand, Payment, Reservation
from gateway.requests.catalogue import ServedModel
from gateway.requests.values import ChatPrompt, InferenceRequest, PreparedRequest
from gateway.text.transcript import Transcript
from gateway.usage.outcome import Outcome

logger = logging.getLogger(__name__)

LAST_EVENT_SECONDS: Final = 5.0  # how long an engine may take to say what a cancelled request used
MOST_NAMESPACES: Final = 4_096  # that are remembered; each costs 8 us to make
ABORTED_BY: Final = {Outcome.CANCELLED: "client", Outcome.DEADLINE: "deadline"}


class Ledger(Protocol):
    """Reserves before, settles after (`gateway.metering.Metering`)."""

    @property
    def epoch(self) -> int:
        """The number of this life of the process; it never repeats."""

    async def reserve(
        self,
        *,
        request_id: str,
        caller: Caller,
        model: str,
        request_class: RequestClass,
        demand: Demand,
    ) -> Reservation:
        """Claims slots and tokens. Raises LimitReached, InvalidRequest, StoreUnavailable: nothing counts."""

    async def extend(self, reservation: Reservation) -> Payment:
        """Pays for more output of a live request; says so when there is no more."""

    def reached(self, reservation: Reservation, *, output_tokens: int) -> None:
        """Takes note, before it is passed on, that so much output has come."""

    def settle(self, reservation: Reservation, usage: Usage, outcome: Outcome) -> None:
        """Gives back what was not used and writes down what was."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request's identity and times (the loop's). `id` is ours and unique; `trace_id` may be the caller's.

    Where it is not streamed, its text comes in few and large parts.
    `idle_first_seconds`, then every `idle_seconds`, an Idle event says that nothing has happened meanwhile.
    """

    id: str
    trace_id: str
    arrived_at: float
    deadline: float
    first_token_deadline: float
    idle_first_seconds: float
    idle_seconds: float
    is_streamed: bool = True


class Admitted(msgspec.Struct, frozen=True):
    """The reservation is made. Always the first event."""

    reservation: Reservation


class TextDelta(msgspec.Struct, frozen=True):
    """More of the answer."""

    text: str


class Idle(msgspec.Struct, frozen=True):
    """Nothing has happened for a while; the answer may still come."""


class Completed(msgspec.Struct, frozen=True):
    """The answer is whole and settled. Always the last event. `limited_by` names the budget that ended it."""

    reason: FinishReason
    usage: Usage
    limited_by: str | None = None


GenerationEvent = Admitted | TextDelta | Idle | Completed


@dataclass
class Pace:
    """When the next Idle is due, in the loop's time."""

    idle_at: float


class Generation:
    """Serves requests that are parsed and whose caller is known. `in_flight` shows how many there are."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        dispatcher: Dispatcher,
        metrics: GatewayMetrics,
        in_flight: Gauge,
        namespace_secret: bytes,
    ) -> None:
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._in_flight = in_flight
        self._namespace_of_tenant = lru_cache(MOST_NAMESPACES)(partial(namespace_of_tenant, namespace_secret))
        self._namespace_of_group = lru_cache(MOST_NAMESPACES)(partial(namespace_of_group, namespace_secret))
        self._live: set[Answer] = set()
        self._settlements: set[asyncio.Task[None]] = set()

    async def run(
        self, call: Call, prepared: PreparedRequest, *, model: ServedModel, caller: Caller
    ) -> AsyncGenerator[GenerationEvent]:
        """One answer as events, beginning with Admitted and ending with Completed. Raises GatewayError.

        Closing the generator early, or cancelling whoever iterates it, ends the request at the engine.
        """
        reservation = await self._reserve(call, prepared, model, caller)
        try:
            answer = self._open(call, prepared, reservation, model=model, caller=caller)
        except Exception:
            self._ledger.settle(reservation, NOTHING_USED, Outcome.FAILED)
            raise
        pace = Pace(asyncio.get_running_loop().time() + call.idle_first_seconds)
        try:
            yield Admitted(reservation)
            while answer.reason is None:
                event = await self._next_event(answer, call, pace)
                if event is not None:
                    yield event
        except GatewayError:
            raise
        except Exception:
            answer.outcome = Outcome.FAILED
            raise
        finally:
            settling = self._settle(answer, call, caller)
        if settling is not None:
            await asyncio.wait([settling])
        yield Completed(answer.reason, answer.usage, answer.limited_by)

    def interrupt(self) -> None:
        """Ends every answer that is under way, with an error to its caller."""
        for answer in list(self._live):
            self._metrics.stream_aborts.labels("shutdown").inc()
            answer.stream.push(Interrupted())

    async def settled(self) -> None:
        """Waits until every request that has ended is settled."""
        while self._settlements:
            await asyncio.gather(*self._settlements, return_exceptions=True)

    # --- reserve -----------------------------------------------------------------------------------------

    async def _reserve(
        self, call: Call, prepared: PreparedRequest, model: ServedModel, caller: Caller
    ) -> Reservation:
        try:
            return await self._ledger.reserve(
                request_id=call.id,
                caller=caller,
                model=prepared.request.model,
                request_class=prepared.request.request_class,
                demand=Demand(
                    prompt_tokens=len(prepared.prompt_ids),
                    output_cap=prepared.output_cap,
                    output_floor=prepared.output_floor,
                    is_long=len(prepared.prompt_ids) > model.limits.long_context_threshold,
                    prompt_param=prepared.request.prompt_param,
                ),
            )
        except LimitReached as refusal:
            self._metrics.quota_rejected.labels(refusal.code).inc()
            raise

    # --- queue and engine --------------------------------------------------------------------------------

    def _open(
        self,
        call: Call,
        prepared: PreparedRequest,
        reservation: Reservation,
        *,
        model: ServedModel,
        caller: Caller,
    ) -> Answer:
        """From here on the reservation is the answer's to settle. What may fail comes before the engine."""
        transcript = transcript_of(prepared.request, model)
        stream = self._dispatcher.open(
            self._wire_request(call, prepared, reservation, caller),
            deadline=call.deadline,
            waiting_timeout_ms=model.limits.waiting_timeout_ms,
        )
        answer = Answer(
            reservation,
            stream,
            transcript,
            Extension(self._ledger, self._dispatcher, reservation, stream),
            prompt_param=prepared.request.prompt_param,
        )
        self._live.add(answer)
        self._in_flight.set(len(self._live))
        self._metrics.overhead.observe(asyncio.get_running_loop().time() - call.arrived_at)
        return answer

    def _wire_request(
        self, call: Call, prepared: PreparedRequest, reservation: Reservation, caller: Caller
    ) -> GenerateRequest:
        return GenerateRequest(
            id=call.id,
            trace_id=call.trace_id,
            model=prepared.request.model,
            tenant=caller.tenant,
            request_class=prepared.request.request_class,
            prompt_ids=prepared.prompt_ids,
            sampling=prepared.sampling_within(reservation.output_cap),
            timeout_ms=0,  # written when it is handed over
            epoch=self._ledger.epoch,
            weight=caller.weight,
            cache_namespace=self._namespace_of_tenant(caller.tenant),
            shared_namespace=self._shared_namespace(prepared, caller),
            num_shared_tokens=prepared.num_shared_tokens,
            tenant_name=caller.tenant_name,
            account=reservation.account,
            paid_tokens=_paid_part(reservation),
            project=caller.project,
            project_weight=caller.project_weight,
            key=caller.key,
            key_weight=caller.key_weight,
        )

    def _shared_namespace(self, prepared: PreparedRequest, caller: Caller) -> bytes:
        if caller.cache_group is None or prepared.num_shared_tokens == 0:
            return b""
        return self._namespace_of_group(caller.cache_group)

    async def _next_event(self, answer: Answer, call: Call, pace: Pace) -> TextDelta | Idle | None:
        """What to tell the caller next; None when the answer has ended without more text."""
        loop = asyncio.get_running_loop()
        while answer.reason is None:
            deadline = call.deadline if answer.transcript.num_tokens else call.first_token_deadline
            events = await answer.stream.take(
                until=min(pace.idle_at, deadline),
                num_tokens=answer.num_tokens_until_look(is_streamed=call.is_streamed),
            )
            if not events:
                if loop.time() >= deadline:
                    raise answer.time_out()
                pace.idle_at = loop.time() + call.idle_seconds
                return Idle()
            had_tokens = answer.transcript.num_tokens > 0
            text = answer.absorb(events)
            self._ledger.reached(answer.reservation, output_tokens=answer.transcript.num_tokens)
            answer.extension.note(answer.transcript.num_tokens)
            if not had_tokens and answer.stream.first_token_at is not None:
                request_class = answer.stream.request.request_class
                seconds = answer.stream.first_token_at - call.arrived_at
                self._metrics.time_to_first_token.labels(request_class).observe(seconds)
            if text:
                pace.idle_at = loop.time() + call.idle_seconds
                return TextDelta(text)
        return None

    # --- settle ------------------------------------------------------------------------------------------

    def _settle(self, answer: Answer, call: Call, caller: Caller) -> asyncio.Task[None] | None:
        """Ends the request at the engine and writes down what it used; a task, while that is unknown."""
        answer.extension.stop()
        settling = None
        if answer.stream.ended:
            self._write_down(answer, call, caller)
        else:
            settling = asyncio.create_task(self._settle_late(answer, call, caller))
            self._settlements.add(settling)
            settling.add_done_callback(self._settlements.discard)
            self._dispatcher.cancel(answer.stream)
        self._live.discard(answer)
        self._in_flight.set(len(self._live))
        return settling

    async def _settle_late(self, answer: Answer, call: Call, caller: Caller) -> None:
        try:
            until = asyncio.get_running_loop().time() + LAST_EVENT_SECONDS
            while not answer.stream.ended and asyncio.get_running_loop().time() < until:
                answer.note_usage(await answer.stream.take(until=until))
        finally:
            self._write_down(answer, call, caller)

    def _write_down(self, answer: Answer, call: Call, caller: Caller) -> None:
        """What was held is let go first, and whatever else fails."""
        try:
            try:
                answer.note_usage(answer.stream.take_now())
            finally:
                self._ledger.settle(answer.reservation, answer.usage, answer.outcome)
            self._count(answer, call, caller)
        except Exception:  # whoever asked has got the answer; that it is not paid for is ours to see
            logger.exception("a request could not be settled")

    def _count(self, answer: Answer, call: Call, caller: Caller) -> None:
        request = answer.stream.request
        tenant = self._metrics.tenants.fold(caller.tenant_name)
        metrics, usage = self._metrics, answer.usage
        metrics.requests.labels(request.request_class, request.model, tenant, answer.outcome).inc()
        if answer.outcome in ABORTED_BY:
            metrics.stream_aborts.labels(ABORTED_BY[answer.outcome]).inc()
        metrics.tokens.labels("prompt", request.model, tenant).inc(usage.prompt_tokens)
        metrics.tokens.labels("completion", request.model, tenant).inc(usage.completion_tokens)
        metrics.duration.labels(request.request_class).observe(
            asyncio.get_running_loop().time() - call.arrived_at
        )


def _paid_part(reservation: Reservation) -> int:
    """On the wire 0 says that the whole answer is paid for."""
    return reservation.paid_tokens if reservation.paid_tokens < reservation.output_cap else 0


def transcript_of(request: InferenceRequest, model: ServedModel) -> Transcript:
    """The empty text of a request's answer."""
    return Transcript(
        model.text.token_bytes,
        stops=request.stops,
        min_tokens=request.min_tokens,
        at_start=isinstance(request.prompt, ChatPrompt),
    )
