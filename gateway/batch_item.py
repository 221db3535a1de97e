"""Runs one line of a batch, the way of every request, and records what became of it or says when again.

It knows endpoints, their bodies and errors, and no claims: `gateway/batch_worker.py` brings the lines.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from engine.protocol import RequestClass, Usage
from gateway.answer import NOTHING_USED
from gateway.batches import output_line
from gateway.batches.claims import ClaimedItem
from gateway.batches.ids import LeaseKey, request_id_of
from gateway.batches.policy import Again, Attempt, again, out_of_budget
from gateway.batches.results import ItemResult
from gateway.errors import DeadlineExceeded, GatewayError, InternalError
from gateway.generation import Call, Completed, Generation, TextDelta
from gateway.item_ledger import ItemLedger, Settlement
from gateway.keys.caller import Caller
from gateway.metering import Metering
from gateway.quotas.refusals import limit_name
from gateway.rendering import AnswerHead, chat_answer, completion_answer, error_body
from gateway.requests.catalogue import Catalogue
from gateway.requests.decode import decode
from gateway.requests.parse import parse_chat, parse_completion
from gateway.requests.prepare import prepare
from gateway.requests.values import InferenceRequest
from gateway.usage.outcome import Outcome

logger = logging.getLogger(__name__)

OK: Final = 200
NEVER: Final = float("inf")
SERVICE_TIER: Final = "default"  # as OpenAI's batches say


class MakeAnswer(Protocol):
    """Writes one whole answer."""

    def __call__(self, head: AnswerHead, *, text: str, finish_reason: str, usage: Usage) -> bytes:
        """The body."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """How a line's body is read, and its answer written."""

    id_prefix: str
    parse: Callable[[bytes], InferenceRequest]
    answer: MakeAnswer


ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "/v1/chat/completions": Endpoint(id_prefix="chatcmpl-", parse=parse_chat, answer=chat_answer),
    "/v1/completions": Endpoint(id_prefix="cmpl-", parse=parse_completion, answer=completion_answer),
}


class Line(msgspec.Struct, frozen=True):
    """Of a line that is known to be valid, what is needed to run it."""

    body: msgspec.Raw


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed item with all that it takes to run it. `share`: what its tenant's was charged for it."""

    item: ClaimedItem
    model: str
    endpoint: Endpoint
    caller: Caller
    line: bytes
    share: float


class ItemRunner:
    """Runs items for one process."""

    def __init__(
        self,
        *,
        generation: Generation,
        ledger: ItemLedger,
        metering: Metering,
        catalogue: Catalogue,
        timeout_seconds: float,
    ) -> None:
        self._generation = generation
        self._ledger = ledger
        self._metering = metering
        self._catalogue = catalogue
        self._timeout_seconds = timeout_seconds

    def unrecorded(self) -> set[LeaseKey]:
        """Leases of items that have ended, and the store does not know it yet."""
        return self._metering.unrecorded_items()

    async def run(self, job: Job) -> Again | None:
        """Runs an item and records its end; else when it is to be run again, by whoever claims it then.

        Cancelling it ends it at the engine: then nothing was used, and nothing is recorded.
        """
        call_id = f"{request_id_of(job.item.batch, job.item.line)}_{secrets.token_hex(4)}"
        try:
            return await self._run(job, call_id)
        except BaseException:
            self._ledger.abandon(call_id)
            raise

    async def _run(self, job: Job, call_id: str) -> Again | None:
        try:
            completed, body = await self._answered(job, call_id)
        except GatewayError as error:
            return await self._failed(job, call_id, error)
        except Exception as error:
            logger.exception("line %d of %s could not be run", job.item.line, job.item.batch)
            internal = InternalError("The server had an error.")
            internal.__cause__ = error
            return await self._failed(job, call_id, internal)
        settlement = await self._ledger.settlement(call_id)
        assert settlement is not None, "it has an answer"
        if _is_cut_short(completed, settlement):
            self._metering.give_up_item(settlement.reservation)
            return out_of_budget()
        line = _answered_line(job, status=OK, body=body)
        self._record(job, settlement, _result(job, line, settlement.usage, is_error=False))
        return None

    async def _answered(self, job: Job, call_id: str) -> tuple[Completed, bytes]:
        request = msgspec.structs.replace(
            job.endpoint.parse(bytes(decode(job.line, Line).body)),
            request_class=RequestClass.OFFLINE,
            stream=False,
        )
        model = self._catalogue.find(request.model, allowed=job.caller.models)
        prepared = await prepare(request, model, cache_group=job.caller.cache_group)
        events = self._generation.run(self._call(call_id), prepared, model=model, caller=job.caller)
        texts, completed = [], None
        async with aclosing(events):
            async for event in events:
                if isinstance(event, TextDelta):
                    texts.append(event.text)
                elif isinstance(event, Completed):
                    completed = event
        assert completed is not None, "the last event"
        head = AnswerHead(
            id=job.endpoint.id_prefix + secrets.token_hex(16),
            created=int(time.time()),
            model=request.model,
            service_tier=SERVICE_TIER,
        )
        return completed, job.endpoint.answer(
            head, text="".join(texts), finish_reason=completed.reason, usage=completed.usage
        )

    def _call(self, call_id: str) -> Call:
        now = asyncio.get_running_loop().time()
        return Call(
            id=call_id,
            trace_id=call_id,
            arrived_at=now,
            deadline=now + self._timeout_seconds,
            first_token_deadline=now + self._timeout_seconds,
            idle_first_seconds=NEVER,
            idle_seconds=NEVER,
            is_streamed=False,
        )

    # --- how it ended ------------------------------------------------------------------------------------

    async def _failed(self, job: Job, call_id: str, error: GatewayError) -> Again | None:
        """The error is the line's answer, unless another attempt may get a better one."""
        settlement = await self._ledger.settlement(call_id)
        retry = again(error, _attempt(job, settlement), chance=random.random())  # noqa: S311 - no secret
        if retry is not None:
            if settlement is not None:
                self._metering.give_up_item(settlement.reservation)
            return retry
        usage = NOTHING_USED if settlement is None else settlement.usage
        self._record(job, settlement, _result(job, _error_line(job, error), usage, is_error=True))
        return None

    def _record(self, job: Job, settlement: Settlement | None, result: ItemResult) -> None:
        if settlement is None:
            self._metering.record_unreserved_item(job.caller.tenant, result, share_error=-job.share)
            return
        used = result.usage.prompt_tokens + result.usage.completion_tokens
        self._metering.record_item(
            settlement.reservation,
            result,
            settlement.outcome,
            share_error=used / job.caller.weight - job.share,
        )


def _is_cut_short(completed: Completed, settlement: Settlement) -> bool:
    """Whether a budget ended the answer, rather than a bound that every answer of its tenant has."""
    bound = settlement.reservation.capped_by
    return completed.limited_by is not None and (bound is None or completed.limited_by != limit_name(bound))


def _attempt(job: Job, settlement: Settlement | None) -> Attempt:
    return Attempt(
        number=job.item.attempt,
        was_at_engine=settlement is not None and settlement.outcome is not Outcome.REFUSED,
        has_output=settlement is not None and settlement.usage.completion_tokens > 0,
    )


def _result(job: Job, line: str, usage: Usage, *, is_error: bool) -> ItemResult:
    item = job.item
    return ItemResult(
        batch=item.batch, line=item.line, attempt=item.attempt, is_error=is_error, body=line, usage=usage
    )


def _answered_line(job: Job, *, status: int, body: bytes) -> str:
    return output_line.answered(
        request_id_of(job.item.batch, job.item.line),
        job.item.custom_id,
        http_request_id=f"req_{secrets.token_hex(16)}",
        status=status,
        body=body,
    )


def _error_line(job: Job, error: GatewayError) -> str:
    if isinstance(error, DeadlineExceeded):
        return output_line.unanswered(
            request_id_of(job.item.batch, job.item.line),
            job.item.custom_id,
            code="request_timeout",
            message=error.message,
        )
    return _answered_line(job, status=error.status, body=error_body(error))
