"""What waits, by who asks: a line per key, and whose of a tenant's lines is next.

    tenant ─┬─ project ─┬─ key: first, second, ...
            │           └─ key: first
            └─ project ─── key: first, ...

Which tenant is next is not decided here. Shared by the engine's scheduler and the gateway's queues.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from engine.core.fair_share import FairShare

Item = TypeVar("Item")

MAX_PARTS_AHEAD = 2  # of the siblings at each level: how many may be next when the first cannot


@dataclass(frozen=True, slots=True)
class Part:
    """A project of a tenant, or a key of a project, and its weight among its siblings."""

    name: str
    weight: float = 1.0


Path = tuple[Part, ...]  # from a tenant down to who asks; all of a tenant's are equally long


class Line(Generic[Item]):
    """What waits of one tenant, project or key: its parts' lines, or a key's items in order of service.

    Parts share its turns by their weights. Their counters live as long as anything of it waits: before and
    after that they have nothing to share.
    """

    __slots__ = ("_items", "_parts", "_share", "num_waiting")

    def __init__(self) -> None:
        self._items: OrderedDict[str, Item] = OrderedDict()
        self._parts: dict[str, Line[Item]] = {}
        self._share = FairShare()
        self.num_waiting = 0

    def push(self, within: Path, key: str, item: Item) -> None:
        """Puts an item at the end of the line of who asks."""
        self.num_waiting += 1
        if not within:
            self._items[key] = item
            return
        name = within[0].name
        if name not in self._parts:
            self._parts[name] = Line()
        self._parts[name].push(within[1:], key, item)
        self._share.enter(name, within[0].weight)

    def move_to_front(self, within: Path, key: str) -> None:
        """Puts a waiting item at the head of its line."""
        self._leaf(within)._items.move_to_end(key, last=False)

    def take(self, within: Path, key: str) -> Item:
        """Takes a waiting item out."""
        self.num_waiting -= 1
        if not within:
            return self._items.pop(key)
        name = within[0].name
        item = self._parts[name].take(within[1:], key)
        self._share.leave(name)
        if not self._parts[name].num_waiting:
            del self._parts[name]
        return item

    def find(self, within: Path, key: str) -> Item:
        """A waiting item."""
        return self._leaf(within)._items[key]

    def charge(self, within: Path, cost: float) -> None:
        """Counts service among siblings: of those parts that have waited since this line began."""
        line: Line[Item] | None = self
        for part in within:
            if line is None or part.name not in line._share:
                return
            line._share.charge(part.name, cost)
            line = line._parts.get(part.name)

    @property
    def is_shared(self) -> bool:
        """Whether counters among its parts, or theirs, decide anything."""
        return len(self._share) > 1 or any(part.is_shared for part in self._parts.values())

    def first(self) -> Iterator[Item]:
        """The line of the key whose turn it is, head first."""
        line = self
        while line._parts:
            line = line._first_part()
        return iter(line._items.values())

    def ahead(self) -> Iterator[Iterator[Item]]:
        """The lines of the first few keys in fair order."""
        if not self._parts:
            yield iter(self._items.values())
            return
        yield from self._first_part().ahead()
        for name in self._share.ahead(MAX_PARTS_AHEAD)[1:]:
            yield from self._parts[name].ahead()

    def all(self) -> Iterator[Iterable[Item]]:
        """The lines of all keys, in no order."""
        if not self._parts:
            yield self._items.values()
        for part in self._parts.values():
            yield from part.all()

    def _first_part(self) -> "Line[Item]":
        if len(self._parts) == 1:
            return next(iter(self._parts.values()))
        name = self._share.first()
        assert name is not None, "what has parts has some that wait"
        return self._parts[name]

    def _leaf(self, within: Path) -> "Line[Item]":
        line = self
        for part in within:
            line = line._parts[part.name]
        return line


class Lines(Generic[Item]):
    """A line per tenant. What is added, removed and looked at first does not depend on how many wait."""

    def __init__(self) -> None:
        self.shared: set[str] = set()  # tenants whose charges matter to whose turn it is within them
        self._lines: dict[str, Line[Item]] = {}
        self._places: dict[str, tuple[str, Path]] = {}

    def push(self, *, tenant: str, key: str, item: Item, within: Path = ()) -> None:
        """Puts `item` at the end of the line of who asks `within` its tenant. `key` must not be waiting."""
        assert key not in self._places, f"{key} is waiting already"
        if tenant not in self._lines:
            self._lines[tenant] = Line()
        line = self._lines[tenant]
        line.push(within, key, item)
        self._places[key] = tenant, within
        if line.is_shared:
            self.shared.add(tenant)

    def push_front(self, *, tenant: str, key: str, item: Item, within: Path = ()) -> None:
        """Puts `item` at the head of the line of who asks: it was there before."""
        self.push(tenant=tenant, key=key, item=item, within=within)
        self._lines[tenant].move_to_front(within, key)

    def take(self, key: str) -> Item:
        """Takes an item out wherever it stands. It must be waiting."""
        tenant, within = self._places.pop(key)
        line = self._lines[tenant]
        item = line.take(within, key)
        if not line.num_waiting:
            del self._lines[tenant]
            self.shared.discard(tenant)
        return item

    def find(self, key: str) -> Item | None:
        """The item of that key, if it waits here."""
        place = self._places.get(key)
        return None if place is None else self._lines[place[0]].find(place[1], key)

    def tenant_of(self, key: str) -> str | None:
        """Whose line an item waits in; None when it is not waiting."""
        place = self._places.get(key)
        return None if place is None else place[0]

    def charge(self, *, tenant: str, within: Path, cost: float) -> None:
        """Counts service among a tenant's projects and keys, if it has something waiting."""
        line = self._lines.get(tenant)
        if line is not None:
            line.charge(within, cost)

    def head(self, tenant: str) -> Item:
        """The item of a tenant whose turn it is; something of it must be waiting."""
        return next(self._lines[tenant].first())

    def ahead(self, tenant: str) -> Iterator[Iterator[Item]]:
        """The lines of a tenant's keys, those whose turn it is before others: the first few."""
        return self._lines[tenant].ahead() if tenant in self._lines else iter(())

    def all_of(self, tenant: str) -> Iterator[Iterable[Item]]:
        """The lines of all of a tenant's keys, in no order."""
        return self._lines[tenant].all() if tenant in self._lines else iter(())

    def num_waiting(self, tenant: str) -> int:
        """How many of a tenant's wait."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.num_waiting

    @property
    def tenants(self) -> Iterator[str]:
        """Whoever has something waiting."""
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[Item]:
        """All waiting items, tenant by tenant."""
        for line in self._lines.values():
            yield from chain.from_iterable(line.all())
