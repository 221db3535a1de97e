"""What a request has been promised, and what the caller may be told of the limits behind it."""

import msgspec

from gateway.quotas.limits import QuotaLimit
from gateway.quotas.wallet import Hold
from gateway.tenants.ids import TenantId


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a request wants. `output_floor` is the least output it can do with, `output_cap` the most."""

    prompt_tokens: int
    output_cap: int
    output_floor: int
    is_long: bool = False
    prompt_param: str = "prompt"


class RateState(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, `name`, after reserving; `reset_seconds` is the time until it is full again."""

    limit: int
    remaining: int
    reset_seconds: float
    name: str = ""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """One live request's slots, requests and tokens. Held from admission until it is settled, exactly once.

    It pays for `paid_tokens` of output, and may be extended up to `output_cap`. `limited_by` made its
    first part less than is usual, `capped_by` the cap less than was asked for.
    `account` says who pays, to whoever finds the request.
    """

    request_id: str
    tenant: TenantId
    output_cap: int
    requests: RateState | None
    tokens: RateState | None
    account: bytes = b""
    hold: Hold = msgspec.field(default_factory=lambda: Hold(parts={}, output_tokens=0))
    limited_by: QuotaLimit | None = None
    capped_by: QuotaLimit | None = None

    @property
    def paid_tokens(self) -> int:
        """The output that is paid for by now: the engine must not generate more."""
        return self.hold.output_tokens


class Payment(msgspec.Struct, frozen=True, kw_only=True):
    """A live request has `paid_tokens` of output in all; `ended_by` names what leaves no more, if it does."""

    paid_tokens: int
    ended_by: str | None
