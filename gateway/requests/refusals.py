"""What an engine's refusal means to whoever sent the request. Pure."""

from typing import Final, assert_never

from engine.protocol import AdmissionReason, Refused
from gateway.errors import (
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    LimitReached,
    ServerOverloaded,
)

DEFAULT_RETRY_SECONDS: Final = 1.0


def error_of(refused: Refused, *, prompt_param: str) -> GatewayError:
    """The error of a refusal; the request never ran."""
    match refused.reason:
        case AdmissionReason.CONTEXT_TOO_LONG:
            return ContextLengthExceeded(refused.detail, param=prompt_param)
        case AdmissionReason.KV_NEVER_FITS | AdmissionReason.INVALID_REQUEST:
            return _invalid(refused, prompt_param)
        case AdmissionReason.OUTPUT_TOO_LONG:
            return _invalid(refused, "max_tokens")
        case (
            AdmissionReason.QUEUE_FULL
            | AdmissionReason.LONG_CONTEXT_DEGRADED
            | AdmissionReason.DEADLINE_INFEASIBLE
            | AdmissionReason.WAITING_TIMEOUT
            | AdmissionReason.DRAINING
            | AdmissionReason.ENGINE_UNHEALTHY
        ):
            return ServerOverloaded(
                _with_wait_reason(refused),
                retry_after_seconds=_retry_after_seconds(refused),
                reason=refused.reason,
                wait_reason=refused.wait_reason,
            )
        case AdmissionReason.TENANT_QUEUE_FULL | AdmissionReason.RATE_SHARE:
            return LimitReached(
                refused.detail,
                limit_type="requests",
                code=refused.reason,
                retry_after_seconds=_retry_after_seconds(refused),
                reason=refused.reason,
            )
        case _:
            assert_never(refused.reason)


def _invalid(refused: Refused, param: str) -> InvalidRequest:
    return InvalidRequest(refused.detail, param=param, code=refused.reason, reason=refused.reason)


def _with_wait_reason(refused: Refused) -> str:
    if refused.wait_reason is None:
        return refused.detail
    return f"{refused.detail} (It last waited for {refused.wait_reason}.)"


def _retry_after_seconds(refused: Refused) -> float:
    return DEFAULT_RETRY_SECONDS if refused.retry_after_ms is None else refused.retry_after_ms / 1000
