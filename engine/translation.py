"""Between the wire's messages and the core's values: pure, one function per direction and type."""

from collections.abc import Iterable
from typing import assert_never

from engine.core.guardrails import Mode, Move
from engine.core.limits import Limits
from engine.core.lines import Part
from engine.core.outcome import Broken, Ended, Outcome, Refusal, Refused, Sampled
from engine.core.sequence import GenerationParams, Sequence, SequenceClass
from engine.core.slo import SloReading
from engine.protocol import (
    AdmissionReason,
    EngineLimits,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GuardrailEvent,
    GuardrailMode,
    Guardrails,
    SequenceEvent,
    SloRow,
    TokenDelta,
    Usage,
    WaitReason,
)
from engine.protocol import Refused as RefusedEvent

RETRY_AFTER_MS = 1000


def sequence_of(
    request: GenerateRequest, *, owner: object, eos_token_ids: frozenset[int], now: float
) -> Sequence:
    """The sequence that answers `request`. Its clock starts when the gateway's did."""
    sampling = request.sampling
    stop_token_ids = frozenset(sampling.stop_token_ids)
    return Sequence(
        id=request.id,
        trace_id=request.trace_id,
        owner=owner,
        tenant=request.tenant,
        sequence_class=SequenceClass(request.request_class.value),
        token_ids=list(request.prompt_ids),
        num_prompt_tokens=len(request.prompt_ids),
        params=GenerationParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            stop_token_ids=stop_token_ids if sampling.ignore_eos else stop_token_ids | eos_token_ids,
        ),
        weight=request.weight,
        within=(Part(request.project, request.project_weight), Part(request.key, request.key_weight)),
        cache_namespace=request.cache_namespace,
        shared_namespace=request.shared_namespace,
        num_shared_tokens=request.num_shared_tokens,
        tenant_name=request.tenant_name or request.tenant,
        arrived_at=now - request.queued_ms / 1000,
        deadline=now + request.timeout_ms / 1000,
        num_paid_tokens=request.paid_tokens or None,
    )


def event_of(outcome: Outcome) -> SequenceEvent:
    """What the gateway is told of `outcome`."""
    sequence = outcome.sequence
    match outcome:
        case Sampled():
            return TokenDelta(id=sequence.id, token_ids=outcome.token_ids)
        case Ended():
            return Finished(
                id=sequence.id,
                reason=FinishReason(outcome.reason.value),
                usage=usage_of(sequence),
                queue_wait_ms=_milliseconds(sequence.arrived_at, sequence.scheduled_at) or 0.0,
                time_to_first_token_ms=_milliseconds(sequence.arrived_at, sequence.first_token_at),
            )
        case Refused():
            return RefusedEvent(
                id=sequence.id,
                reason=AdmissionReason(outcome.refusal.reason.value),
                detail=outcome.refusal.detail,
                retry_after_ms=_retry_after_ms(outcome.refusal),
                wait_reason=_wait_reason_of(outcome.refusal),
            )
        case Broken():
            return Failed(id=sequence.id, error=outcome.error, usage=usage_of(sequence))
        case _:
            assert_never(outcome)


def is_last(outcome: Outcome) -> bool:
    """Whether nothing follows `outcome` for its sequence."""
    match outcome:
        case Sampled():
            return False
        case Ended() | Refused() | Broken():
            return True
        case _:
            assert_never(outcome)


def end_of(outcome: Outcome) -> str:
    """How a sequence's last outcome reads in a log line."""
    match outcome:
        case Sampled():
            return "running"
        case Ended():
            return outcome.reason.value
        case Refused():
            return outcome.refusal.reason.value
        case Broken():
            return f"error: {outcome.error}"
        case _:
            assert_never(outcome)


def usage_of(sequence: Sequence) -> Usage:
    """Prompt tokens computed at least once, and tokens sampled; recomputing after preemption is free."""
    return Usage(
        prompt_tokens=sequence.num_prompt_tokens_computed,
        cached_tokens=sequence.num_cached_tokens,
        completion_tokens=sequence.num_output_tokens,
    )


def limits_of(limits: Limits) -> EngineLimits:
    """The limits as the wire tells them."""
    return EngineLimits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_prefill_tokens=limits.max_num_prefill_tokens,
        max_model_len=limits.max_model_len,
        max_output_len=limits.max_output_len,
        prefill_chunk_size=limits.prefill_chunk_size,
        long_context_threshold=limits.long_context_threshold,
        max_num_long_context_seqs=limits.max_num_long_context_seqs,
        kv_cache_utilization_limit=limits.kv_cache_utilization_limit,
        waiting_timeout_ms=limits.waiting_timeout_ms,
        offline_kv_utilization_limit=limits.offline_kv_utilization_limit,
        offline_min_share=limits.offline_min_share,
    )


def slo_row_of(reading: SloReading) -> SloRow:
    """One reading of `[slo]` as the wire tells it."""
    return SloRow(
        name=reading.name,
        target=reading.target,
        now=reading.now,
        five_minutes=reading.five_minutes,
        minutes_in_breach=reading.minutes_in_breach,
    )


def guardrails_of(*, mode: Mode, level: int, moves: Iterable[Move], unix_time_ahead: float) -> Guardrails:
    """Where the guardrails stand, as the wire tells it. `unix_time_ahead` of the moves' clock, in seconds."""
    events = tuple(
        GuardrailEvent(
            number=move.number,
            at=move.at + unix_time_ahead,
            from_level=int(move.from_level),
            to_level=int(move.to_level),
            measure=move.measure,
            value=move.value,
            target=move.target,
            detail=move.detail,
            is_dry_run=move.is_dry_run,
        )
        for move in moves
    )
    return Guardrails(mode=GuardrailMode(mode.value), level=int(level), events=events)


def _retry_after_ms(refusal: Refusal) -> int:
    seconds = refusal.retry_after_seconds
    return RETRY_AFTER_MS if seconds is None else int(seconds * 1000)


def _wait_reason_of(refusal: Refusal) -> WaitReason | None:
    return None if refusal.wait_reason is None else WaitReason(refusal.wait_reason.value)


def _milliseconds(start: float, end: float | None) -> float | None:
    return None if end is None else (end - start) * 1000
