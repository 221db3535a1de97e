"""Words a refusal for the person who sent the request, as the published API words it."""

import math
from typing import assert_never

from gateway.errors import LimitReached, LimitStanding
from gateway.quotas.policy import SECONDS_PER_REFILL, SLOT_RETRY_AFTER_SECONDS, NoSlot, NoTokens


def limit_reached(refusal: NoSlot | NoTokens, *, model: str, tenant_name: str) -> LimitReached:
    """The error to raise; whoever raises it has counted nothing."""
    match refusal:
        case NoSlot():
            return LimitReached(
                f"Concurrency limit reached for {model} in organization {tenant_name}: "
                f"Limit {refusal.limit}, In use {refusal.in_use}.{_advice(refusal.retry_after_seconds)}",
                limit_type="requests",
                code="concurrency_limit_exceeded",
                retry_after_seconds=refusal.retry_after_seconds,
                should_retry=_should_retry(refusal.retry_after_seconds),
                standing=LimitStanding(
                    limit=refusal.limit,
                    remaining=max(refusal.limit - refusal.in_use, 0),
                    reset_seconds=SLOT_RETRY_AFTER_SECONDS,
                ),
            )
        case NoTokens():
            return LimitReached(
                f"Rate limit reached for {model} in organization {tenant_name} on tokens per min (TPM): "
                f"Limit {refusal.limit}, Used {refusal.used}, Requested {refusal.requested}."
                f"{_advice(refusal.retry_after_seconds)}",
                limit_type="tokens",
                code="rate_limit_exceeded",
                retry_after_seconds=refusal.retry_after_seconds,
                should_retry=_should_retry(refusal.retry_after_seconds),
                standing=LimitStanding(
                    limit=refusal.limit,
                    remaining=max(refusal.limit - refusal.used, 0),
                    reset_seconds=refusal.used * SECONDS_PER_REFILL / max(refusal.limit, 1),
                ),
            )
        case _:
            assert_never(refusal)


def _should_retry(retry_after_seconds: float | None) -> bool | None:
    """Without a wait that would help, clients are told not to try; otherwise they decide."""
    return False if retry_after_seconds is None else None


def _advice(retry_after_seconds: float | None) -> str:
    if retry_after_seconds is None:
        return " The request is over the limit as a whole; ask for a higher one."
    return f" Please try again in {math.ceil(retry_after_seconds)}s."
