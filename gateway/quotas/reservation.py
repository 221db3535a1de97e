"""What a request has been promised, and what the caller may be told of the limits behind it."""

from dataclasses import dataclass

from gateway.tenants.ids import TenantId


@dataclass(frozen=True, kw_only=True)
class RateState:
    """A limit after reserving; `reset_seconds` is the time until it is full again. None means unlimited."""

    limit: int
    remaining: int
    reset_seconds: float


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """One live request's slot and tokens. Held from admission until it is settled, exactly once.

    `max_output_tokens` is the output the reservation pays for: the engine must not generate more.
    """

    request_id: str
    tenant: TenantId
    reserved_tokens: int
    max_output_tokens: int
    requests: RateState | None
    tokens: RateState | None
