"""A queue that is fair between tenants, between a tenant's projects and between a project's keys."""

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from engine.core.fair_share import FairShare
from engine.core.lines import Lines, Path

Item = TypeVar("Item")


class _Waiting(NamedTuple, Generic[Item]):
    key: str
    item: Item
    cost: float
    within: Path


class FairQueue(Generic[Item]):
    """Lines served item by item, each at a known cost: the tenant charged least is next, and so on within."""

    def __init__(self) -> None:
        self._share = FairShare()
        self._lines: Lines[_Waiting[Item]] = Lines()

    def push(
        self,
        *,
        tenant: str,
        key: str,
        item: Item,
        cost: float = 1.0,
        weight: float = 1.0,
        within: Path = (),
    ) -> None:
        """Puts `item` at the end of the line of who asks `within` its tenant. `key` must not be waiting."""
        self._lines.push(tenant=tenant, key=key, item=_Waiting(key, item, cost, within), within=within)
        self._share.enter(tenant, weight)

    def peek(self) -> Item | None:
        """The item that `pop` would take, or None when nobody waits."""
        tenant = self._share.first()
        return None if tenant is None else self.head(tenant)

    def head(self, tenant: str) -> Item:
        """The item of a tenant whose turn it is; something of it must be waiting."""
        return self._lines.head(tenant).item

    def pop(self) -> Item:
        """Takes the next item and charges who asked. Raises LookupError when nobody waits."""
        tenant = self._share.first()
        if tenant is None:
            raise LookupError("nobody waits")
        waiting = self._lines.head(tenant)
        self._share.charge(tenant, waiting.cost)
        self._lines.charge(tenant=tenant, within=waiting.within, cost=waiting.cost)
        self._lines.take(waiting.key)
        self._share.leave(tenant)
        return waiting.item

    def remove(self, key: str) -> Item | None:
        """Takes an item out wherever it stands, at no cost. None when it is not waiting."""
        tenant = self._lines.tenant_of(key)
        if tenant is None:
            return None
        self._share.leave(tenant)
        return self._lines.take(key).item

    @property
    def tenants(self) -> Iterator[str]:
        """Whoever has something waiting."""
        return self._lines.tenants

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def __iter__(self) -> Iterator[Item]:
        """All waiting items, tenant by tenant."""
        return (waiting.item for waiting in self._lines)
