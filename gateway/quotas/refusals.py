"""Words a refusal for the person who sent the request, as the published API words it."""

import math
from dataclasses import dataclass
from typing import Final

from gateway.errors import InvalidRequest, LimitReached, LimitStanding
from gateway.quotas.limits import Counting, QuotaKind, QuotaLimit, Scope
from gateway.quotas.policy import SECONDS_PER_REFILL

SLOT_RETRY_AFTER_SECONDS: Final = 1.0  # when a slot gets free, nobody knows
MAX_OBEYED_SECONDS: Final = 120.0  # clients stop obeying a longer Retry-After

_WORDS: Final = {
    QuotaKind.REQUESTS_PER_MINUTE: "requests per min (RPM)",
    QuotaKind.TOKENS_PER_MINUTE: "tokens per min (TPM)",
    QuotaKind.TOKENS_PER_DAY: "tokens per day (TPD)",
    QuotaKind.TOKENS_PER_MONTH: "tokens per month",
}


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """Why a request was not let in, in figures. `seconds_left` of the limit's window, if it has one."""

    limit: QuotaLimit
    requested: int
    remaining: float
    seconds_left: float | None


def scope_name(limit: QuotaLimit, *, tenant_name: str) -> str:
    """Whose limit it is, as errors and headers call it."""
    match limit.scope:
        case Scope.TENANT:
            return f"organization {tenant_name}"
        case Scope.PROJECT:
            return f"project {limit.scope_id} of organization {tenant_name}"
        case Scope.KEY:
            return f"API key {limit.scope_id} of organization {tenant_name}"


def limit_reached(shortage: Shortage, *, model: str, tenant_name: str) -> LimitReached:
    """The error to raise; whoever raises it has counted nothing."""
    limit = shortage.limit
    wait = retry_after_seconds(shortage)
    where = f"{model} in {scope_name(limit, tenant_name=tenant_name)}"
    remaining = max(0, int(shortage.remaining))
    used = max(0, limit.value - remaining)
    if limit.counting is Counting.SLOTS:
        kind = (
            "Long-context concurrency" if limit.kind is QuotaKind.CONCURRENT_LONG_REQUESTS else "Concurrency"
        )
        message = f"{kind} limit reached for {where}: Limit {limit.value}, In use {used}."
        code = "concurrency_limit_exceeded"
    else:
        message = (
            f"Rate limit reached for {where} on {_WORDS[limit.kind]}: Limit {limit.value}, Used {used}, "
            f"Requested {shortage.requested}."
        )
        code = "rate_limit_exceeded"
    return LimitReached(
        message + _advice(wait),
        limit_type=limit.unit.value,
        code=code,
        retry_after_seconds=wait,
        should_retry=False if wait is None or wait > MAX_OBEYED_SECONDS else None,
        standing=LimitStanding(
            limit=limit.value,
            remaining=remaining,
            reset_seconds=reset_seconds(limit, remaining=remaining, seconds_left=shortage.seconds_left),
            name=limit_name(limit),
        ),
    )


def limit_name(limit: QuotaLimit) -> str:
    """A limit as headers name it: `project/tokens_per_day`."""
    parts = [limit.scope.value, limit.kind.value]
    parts += [part for part in (limit.model, limit.request_class) if part is not None]
    return "/".join(parts)


def retry_after_seconds(shortage: Shortage) -> float | None:
    """When trying again may help; None when it never will: the request is over the limit as a whole."""
    limit = shortage.limit
    if shortage.requested > limit.value:
        return None
    match limit.counting:
        case Counting.SLOTS:
            return SLOT_RETRY_AFTER_SECONDS
        case Counting.RATE:
            missing = shortage.requested - shortage.remaining
            return max(missing * SECONDS_PER_REFILL / limit.value, 1.0)
        case Counting.WINDOW:
            return max(shortage.seconds_left or 0.0, 1.0)
        case Counting.BOUND | Counting.LEVEL:
            return None


def reset_seconds(limit: QuotaLimit, *, remaining: float, seconds_left: float | None) -> float:
    """How long it takes until the whole limit is free again, were nothing more used."""
    match limit.counting:
        case Counting.SLOTS:
            return SLOT_RETRY_AFTER_SECONDS
        case Counting.RATE:
            return (limit.value - remaining) * SECONDS_PER_REFILL / max(limit.value, 1)
        case Counting.WINDOW:
            return seconds_left or 0.0
        case Counting.BOUND | Counting.LEVEL:
            return 0.0


def input_too_long(
    limit: QuotaLimit, *, num_prompt_tokens: int, tenant_name: str, param: str
) -> InvalidRequest:
    """The prompt is longer than this caller may send."""
    return InvalidRequest(
        f"The prompt has {num_prompt_tokens} tokens; "
        f"{scope_name(limit, tenant_name=tenant_name)} may send at most {limit.value}.",
        param=param,
        code="context_length_exceeded",
    )


def output_too_long(limit: QuotaLimit, *, wanted: int, tenant_name: str) -> InvalidRequest:
    """More output is asked for than this caller may have."""
    return InvalidRequest(
        f"'max_tokens' is {wanted}; {scope_name(limit, tenant_name=tenant_name)} may ask for at most "
        f"{limit.value}.",
        param="max_tokens",
    )


def _advice(wait: float | None) -> str:
    if wait is None:
        return " The request is over the limit as a whole; ask for a higher one."
    return f" Please try again in {math.ceil(wait)}s."
