"""Whose turn it is: weighted virtual token counters of tenants, and the lines in which their items wait.

Shared by the engine's scheduler and the gateway's queues; knows tenants, order and cost, not what waits.
After VTC (Sheng et al., OSDI 2024), but charged as work is scheduled, piece by piece, so that nothing that is
cancelled has to be given back.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

Item = TypeVar("Item")

MANY_TENANTS = 4096  # counters beyond these are worth a look for some to forget


class FairShare:
    """One counter per tenant: service received, divided by its weight. The smallest is next.

    A tenant takes part from its first `enter` to its last `leave`: while something of its waits. One that
    comes (back) is lifted to the smallest counter of those who wait: nobody saves up turns by being idle, and
    nobody pays for having been alone.
    """

    def __init__(self) -> None:
        self._virtual: dict[str, float] = {}
        self._service: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._ordered_weights: Mapping[str, float] = {}  # an operator's, which go before the requests'
        self._num_waiting: dict[str, int] = {}
        self._last_to_leave: str | None = None

    def enter(self, tenant: str, weight: float = 1.0) -> None:
        """Something of the tenant's begins to wait."""
        self._weights[tenant] = weight
        if tenant not in self._num_waiting:
            self._virtual[tenant] = max(self.virtual(tenant), self.smallest)
            self._num_waiting[tenant] = 0
        self._num_waiting[tenant] += 1

    def leave(self, tenant: str) -> None:
        """Something of the tenant's waits no more."""
        self._num_waiting[tenant] -= 1
        if self._num_waiting[tenant] == 0:
            del self._num_waiting[tenant]
            self._last_to_leave = tenant
            if len(self._virtual) > MANY_TENANTS:
                self._forget_the_idle()

    def charge(self, tenant: str, cost: float) -> None:
        """Counts service; it weighs less on a tenant with a greater weight."""
        self._virtual[tenant] = self.virtual(tenant) + cost / self.weight(tenant)
        self._service[tenant] = self.service(tenant) + cost

    def virtual(self, tenant: str) -> float:
        """The counter of a tenant."""
        return self._virtual.get(tenant, 0.0)

    def service(self, tenant: str) -> float:
        """What a tenant was charged in all, before its weight; begins anew after it was long forgotten."""
        return self._service.get(tenant, 0.0)

    @property
    def total_service(self) -> float:
        """What all tenants were charged."""
        return sum(self._service.values())

    def lead(self, tenant: str) -> float:
        """By how much a tenant's counter is beyond the smallest of those who wait."""
        return self.virtual(tenant) - self.smallest if self._num_waiting else 0.0

    def weight(self, tenant: str) -> float:
        """Its share relative to others."""
        return self._ordered_weights.get(tenant) or self._weights.get(tenant, 1.0)

    def order_weights(self, weights: Mapping[str, float]) -> None:
        """From now on these weights count, whatever the requests say."""
        self._ordered_weights = weights

    @property
    def smallest(self) -> float:
        """The smallest counter of those who wait; without any, of who waited last."""
        if self._num_waiting:
            return min(self._virtual[tenant] for tenant in self._num_waiting)
        return 0.0 if self._last_to_leave is None else self.virtual(self._last_to_leave)

    def _forget_the_idle(self) -> None:
        """A counter that a lift would pass over anyway says nothing."""
        floor = self.smallest
        self._virtual = {
            tenant: virtual
            for tenant, virtual in self._virtual.items()
            if tenant in self._num_waiting or virtual >= floor
        }
        self._weights = {tenant: self._weights.get(tenant, 1.0) for tenant in self._virtual}
        self._service = {tenant: self.service(tenant) for tenant in self._virtual}


class Lines(Generic[Item]):
    """A line per tenant, in order of service. Adding, removing and looking at a line's head are O(1)."""

    def __init__(self) -> None:
        self._lines: dict[str, OrderedDict[str, Item]] = {}
        self._tenant_of: dict[str, str] = {}

    def push(self, *, tenant: str, key: str, item: Item) -> None:
        """Puts `item` at the end of its tenant's line. `key` must not be waiting already."""
        assert key not in self._tenant_of, f"{key} is waiting already"
        self._lines.setdefault(tenant, OrderedDict())[key] = item
        self._tenant_of[key] = tenant

    def push_front(self, *, tenant: str, key: str, item: Item) -> None:
        """Puts `item` at the head of its tenant's line: it was there before."""
        self.push(tenant=tenant, key=key, item=item)
        self._lines[tenant].move_to_end(key, last=False)

    def take(self, key: str) -> Item:
        """Takes an item out wherever it stands. It must be waiting."""
        tenant = self._tenant_of.pop(key)
        line = self._lines[tenant]
        item = line.pop(key)
        if not line:
            del self._lines[tenant]
        return item

    def find(self, key: str) -> Item | None:
        """The item of that key, if it waits here."""
        tenant = self._tenant_of.get(key)
        return None if tenant is None else self._lines[tenant][key]

    def tenant_of(self, key: str) -> str | None:
        """Whose line an item waits in; None when it is not waiting."""
        return self._tenant_of.get(key)

    def head_key(self, tenant: str) -> str:
        """The key at the head of a tenant's line, which must not be empty."""
        return next(iter(self._lines[tenant]))

    def line(self, tenant: str) -> Iterator[Item]:
        """A tenant's items, head first."""
        return iter(self._lines[tenant].values()) if tenant in self._lines else iter(())

    def num_waiting(self, tenant: str) -> int:
        """The length of a tenant's line."""
        return len(self._lines.get(tenant, ()))

    @property
    def tenants(self) -> Iterator[str]:
        """Whoever has something waiting."""
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, key: str) -> bool:
        return key in self._tenant_of

    def __iter__(self) -> Iterator[Item]:
        """All waiting items, tenant by tenant."""
        for line in self._lines.values():
            yield from line.values()


class FairQueue(Generic[Item]):
    """Lines served item by item, each at a known cost: the tenant charged least is next."""

    def __init__(self) -> None:
        self._share = FairShare()
        self._lines: Lines[tuple[Item, float]] = Lines()

    def push(self, *, tenant: str, key: str, item: Item, cost: float = 1.0, weight: float = 1.0) -> None:
        """Puts `item` at the end of its tenant's line. `key` must not be waiting already."""
        self._lines.push(tenant=tenant, key=key, item=(item, cost))
        self._share.enter(tenant, weight)

    def peek(self) -> Item | None:
        """The item that `pop` would take, or None when nobody waits."""
        tenant = self._next_tenant()
        return None if tenant is None else self.head(tenant)

    def pop(self) -> Item:
        """Takes the next item and charges its tenant. Raises LookupError when nobody waits."""
        tenant = self._next_tenant()
        if tenant is None:
            raise LookupError("nobody waits")
        item, cost = self._lines.take(self._lines.head_key(tenant))
        self._share.charge(tenant, cost)
        self._share.leave(tenant)
        return item

    def remove(self, key: str) -> Item | None:
        """Takes an item out wherever it stands, at no cost. None when it is not waiting."""
        tenant = self._lines.tenant_of(key)
        if tenant is None:
            return None
        self._share.leave(tenant)
        return self._lines.take(key)[0]

    @property
    def tenants(self) -> Iterator[str]:
        """Whoever has something waiting."""
        return self._lines.tenants

    def head(self, tenant: str) -> Item:
        """The item at the head of a tenant's line, which must not be empty."""
        return next(self._lines.line(tenant))[0]

    def _next_tenant(self) -> str | None:
        return min(self._lines.tenants, key=self._share.virtual, default=None)

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def __iter__(self) -> Iterator[Item]:
        """All waiting items, tenant by tenant."""
        return (item for item, _ in self._lines)
