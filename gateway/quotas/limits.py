"""What a tenant may use at most."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_LIMIT: Final = 1_000_000_000  # more than that is "unlimited"


class QuotaKind(StrEnum):
    """What is limited; the names are the stored ones."""

    CONCURRENT_REQUESTS = "concurrent_requests"
    TOKENS_PER_MINUTE = "tokens_per_minute"


@dataclass(frozen=True, kw_only=True)
class TenantLimits:
    """None means unlimited. Tokens are prompt and output together, refilled continuously."""

    concurrent_requests: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for value in (self.concurrent_requests, self.tokens_per_minute):
            if value is not None and not 0 <= value <= MAX_LIMIT:
                raise ValueError(f"a limit must be 0 to {MAX_LIMIT}, not {value}")
