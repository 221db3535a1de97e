"""How much service each tenant got lately: charged tokens of the last ten seconds, and in all."""

from collections import deque
from typing import NamedTuple

HORIZON_SECONDS = 10.0


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
        self.total: dict[str, float] = {}
        self._buckets: deque[tuple[float, dict[str, float]]] = deque()

    def add(self, tenant: str, cost: float, now: float) -> None:
        """Counts service to a tenant."""
        self.total[tenant] = self.total.get(tenant, 0.0) + cost
        if not self._buckets or now - self._buckets[-1][0] >= 1.0:
            self._buckets.append((now, {}))
        bucket = self._buckets[-1][1]
        bucket[tenant] = bucket.get(tenant, 0.0) + cost

    def recent(self, now: float) -> dict[str, float]:
        """Service of the last ten seconds, of those who had any."""
        while self._buckets and now - self._buckets[0][0] > HORIZON_SECONDS:
            self._buckets.popleft()
        sums: dict[str, float] = {}
        for _, bucket in self._buckets:
            for tenant, cost in bucket.items():
                sums[tenant] = sums.get(tenant, 0.0) + cost
        return sums
