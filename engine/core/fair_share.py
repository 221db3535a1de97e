"""Whose turn it is: a queue shared by tenants, popped one tenant after another.

Shared by the engine's scheduler and the gateway's queues; knows tenants and order, nothing of what it holds.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """First come, first served within a tenant; turns between tenants. All operations are O(1).

    A tenant's turn is spent by `pop`; one that joins waits behind those who are already waiting.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, Item]] = {}  # tenant -> key -> item; both in order of service
        self._tenant_of: dict[str, str] = {}

    def push(self, *, tenant: str, key: str, item: Item) -> None:
        """Puts `item` at the end of its tenant's line. `key` must not be waiting already."""
        assert key not in self._tenant_of, f"{key} is waiting already"
        self._lines.setdefault(tenant, {})[key] = item
        self._tenant_of[key] = tenant

    def peek(self) -> Item | None:
        """The item that `pop` would take, or None when nobody waits."""
        for line in self._lines.values():
            return next(iter(line.values()))
        return None

    def pop(self) -> Item:
        """Takes the next item and spends its tenant's turn. Raises LookupError when nobody waits."""
        tenant, line = next(iter(self._lines.items()), (None, None))
        if tenant is None or line is None:
            raise LookupError("nobody waits")
        key = next(iter(line))
        item = line.pop(key)
        del self._tenant_of[key]
        del self._lines[tenant]
        if line:
            self._lines[tenant] = line  # to the end: the others come first now
        return item

    def remove(self, key: str) -> Item | None:
        """Takes an item out wherever it stands; the turns of others are untouched. None when not waiting."""
        tenant = self._tenant_of.pop(key, None)
        if tenant is None:
            return None
        line = self._lines[tenant]
        item = line.pop(key)
        if not line:
            del self._lines[tenant]
        return item

    def __len__(self) -> int:
        return len(self._tenant_of)

    def __contains__(self, key: str) -> bool:
        return key in self._tenant_of

    def __iter__(self) -> Iterator[Item]:
        """All waiting items, tenant by tenant."""
        for line in self._lines.values():
            yield from line.values()
