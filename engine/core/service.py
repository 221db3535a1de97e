"""How much service each tenant got lately: charged tokens of the last ten seconds."""

from collections import deque
from typing import NamedTuple

HORIZON_SECONDS = 10.0
BUCKET_SECONDS = 1.0


class TenantLoad(NamedTuple):
    """One tenant that has something in the engine. `service` is what it was charged in all, before its
    weight.

    A named tuple because hundreds are made several times a second.
    """

    tenant: str
    name: str
    weight: float
    running: int
    waiting: int
    service: float


class RecentService:
    """Sums per tenant in buckets of a second. Idle tenants cost nothing."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, dict[str, float]]] = deque()

    def add(self, tenant: str, cost: float, now: float) -> None:
        """Counts service to a tenant."""
        if not self._buckets or now - self._buckets[-1][0] >= BUCKET_SECONDS:
            self._buckets.append((now, {}))
            while now - self._buckets[0][0] > HORIZON_SECONDS:
                self._buckets.popleft()
        bucket = self._buckets[-1][1]
        bucket[tenant] = bucket.get(tenant, 0.0) + cost

    def recent(self, now: float, seconds: float = HORIZON_SECONDS) -> dict[str, float]:
        """Service of the last `seconds` (at most ten), of those who had any."""
        sums: dict[str, float] = {}
        for since, bucket in reversed(self._buckets):
            if now - since > seconds:
                break
            for tenant, cost in bucket.items():
                sums[tenant] = sums.get(tenant, 0.0) + cost
        return sums
