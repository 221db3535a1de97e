"""What may be limited, for whom, and by how much. Pure values; the names are the stored ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, NewType

from engine.protocol import RequestClass
from gateway.tenants.ids import TenantId

LimitId = NewType("LimitId", int)

MAX_LIMIT: Final = 1_000_000_000_000  # more than that is "unlimited"


class Scope(StrEnum):
    """Whose requests count together. A tenant has projects, a project has keys."""

    TENANT = "tenant"
    PROJECT = "project"
    KEY = "key"


class QuotaKind(StrEnum):
    """What is limited."""

    CONCURRENT_REQUESTS = "concurrent_requests"
    CONCURRENT_LONG_REQUESTS = "concurrent_long_requests"  # prompts above the engine's long_context_threshold
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    INPUT_TOKENS = "input_tokens"  # of one request
    OUTPUT_TOKENS = "output_tokens"
    BATCH_ENQUEUED_TOKENS = "batch_enqueued_tokens"  # prompt tokens of all batches that have not ended
    FILE_STORAGE_BYTES = "file_storage_bytes"


class Counting(Enum):
    """How use is counted against a limit."""

    SLOTS = "held while a request lives"
    RATE = "refilled continuously, in a minute"
    WINDOW = "used up until the window (a day or a month, UTC) ends"
    BOUND = "looked at in each request, never used up"
    LEVEL = "looked at when a file or a batch is added to what is there"


class Unit(StrEnum):
    """What one of it is; the word in headers and errors."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    BYTES = "bytes"


COUNTING: Final = {
    QuotaKind.CONCURRENT_REQUESTS: Counting.SLOTS,
    QuotaKind.CONCURRENT_LONG_REQUESTS: Counting.SLOTS,
    QuotaKind.REQUESTS_PER_MINUTE: Counting.RATE,
    QuotaKind.TOKENS_PER_MINUTE: Counting.RATE,
    QuotaKind.TOKENS_PER_DAY: Counting.WINDOW,
    QuotaKind.TOKENS_PER_MONTH: Counting.WINDOW,
    QuotaKind.INPUT_TOKENS: Counting.BOUND,
    QuotaKind.OUTPUT_TOKENS: Counting.BOUND,
    QuotaKind.BATCH_ENQUEUED_TOKENS: Counting.LEVEL,
    QuotaKind.FILE_STORAGE_BYTES: Counting.LEVEL,
}
IN_REQUESTS: Final = frozenset(
    {QuotaKind.CONCURRENT_REQUESTS, QuotaKind.CONCURRENT_LONG_REQUESTS, QuotaKind.REQUESTS_PER_MINUTE}
)


@dataclass(frozen=True, kw_only=True)
class QuotaLimit:
    """At most `value` of `kind` for everything in `scope_id`; `model` and `request_class` None: all of them.

    Limits with a class are pools apart: an offline request never uses what is only for interactive ones.
    """

    id: LimitId
    tenant: TenantId
    scope: Scope
    scope_id: str
    kind: QuotaKind
    value: int
    model: str | None = None
    request_class: RequestClass | None = None

    @property
    def counting(self) -> Counting:
        """How it is counted."""
        return COUNTING[self.kind]

    @property
    def is_used_up(self) -> bool:
        """Whether requests use it up, or hold some of it: only such limits have buckets."""
        return self.counting not in (Counting.BOUND, Counting.LEVEL)

    @property
    def is_counted(self) -> bool:
        """Whether something counts towards it, rather than each request being looked at by itself."""
        return self.counting is not Counting.BOUND

    @property
    def unit(self) -> Unit:
        """What it counts."""
        if self.kind is QuotaKind.FILE_STORAGE_BYTES:
            return Unit.BYTES
        return Unit.REQUESTS if self.kind in IN_REQUESTS else Unit.TOKENS

    def counts(self, *, model: str, request_class: RequestClass) -> bool:
        """Whether a request for the model, of the class, counts here."""
        return self.model in (None, model) and self.request_class in (None, request_class)


@dataclass(frozen=True, kw_only=True)
class TenantLimits:
    """The two limits that most tenants have: of the whole tenant, all models, both classes. None: unlimited.

    Tokens are prompt and output together, refilled continuously.
    """

    concurrent_requests: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for value in (self.concurrent_requests, self.tokens_per_minute):
            if value is not None:
                check_value(value)


def tenant_limits(limits: Iterable[QuotaLimit]) -> TenantLimits:
    """The two, out of all of a tenant's."""
    whole = {
        limit.kind: limit.value
        for limit in limits
        if limit.scope is Scope.TENANT and limit.model is None and limit.request_class is None
    }
    return TenantLimits(
        concurrent_requests=whole.get(QuotaKind.CONCURRENT_REQUESTS),
        tokens_per_minute=whole.get(QuotaKind.TOKENS_PER_MINUTE),
    )


def check_value(value: int) -> None:
    """Raises ValueError for what is no limit."""
    if not 0 <= value <= MAX_LIMIT:
        raise ValueError(f"a limit must be 0 to {MAX_LIMIT}, not {value}")
