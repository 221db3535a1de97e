"""Whose turn it is among siblings: weighted virtual token counters of tenants, of projects or of keys.

Shared by the engine's scheduler and the gateway's queues; knows names, order and cost, not what waits.
After VTC (Sheng et al., OSDI 2024), but charged as work is scheduled, piece by piece, so that nothing that is
cancelled has to be given back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

MANY_NAMES = 4096  # counters beyond these are worth a look for some to forget


@dataclass(slots=True)
class _Counter:
    """What one of them was served. `turn` counts up with everybody who begins to wait."""

    weight: float
    virtual: float = 0.0
    service: float = 0.0
    num_waiting: int = 0
    turn: int = 0
    is_in_order: bool = False


class FairShare:
    """One counter per name: service received, divided by its weight. The smallest is next.

    Who is counted here takes part from its first `enter` to its last `leave`: while something of its waits.
    One that comes (back) is lifted to the smallest counter of those who wait: nobody saves up turns by being
    idle, and nobody pays for having been alone.
    """

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}
        self._ordered_weights: Mapping[str, float] = {}  # an operator's, which go before the requests'
        self._order: list[
            tuple[float, int, str]
        ] = []  # a heap of who waits, as of when each was last looked at
        self._num_turns = 0
        self._last_to_leave: str | None = None
        self._num_before_forgetting = MANY_NAMES

    def enter(self, name: str, weight: float = 1.0) -> None:
        """Something of the name's begins to wait."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = _Counter(weight)
        counter.weight = weight
        if not counter.num_waiting:
            self._begin_to_wait(name, counter)
        counter.num_waiting += 1

    def leave(self, name: str) -> None:
        """Something of the name's waits no more."""
        counter = self._counters[name]
        counter.num_waiting -= 1
        if not counter.num_waiting:
            self._last_to_leave = name
            if len(self._counters) > self._num_before_forgetting:
                self._forget_the_idle()

    def charge(self, name: str, cost: float) -> None:
        """Counts service; it weighs less on who has a greater weight."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = _Counter(1.0)
        counter.virtual += cost / (self._ordered_weights.get(name) or counter.weight)
        counter.service += cost

    def virtual(self, name: str) -> float:
        """The counter of a name."""
        counter = self._counters.get(name)
        return 0.0 if counter is None else counter.virtual

    def service(self, name: str) -> float:
        """What a name was charged in all, before its weight; begins anew after it was long forgotten."""
        counter = self._counters.get(name)
        return 0.0 if counter is None else counter.service

    @property
    def total_service(self) -> float:
        """What all were charged."""
        return sum(counter.service for counter in self._counters.values())

    def lead(self, name: str) -> float:
        """By how much a name's counter is beyond the smallest of those who wait."""
        first = self.first()
        return 0.0 if first is None else self.virtual(name) - self._counters[first].virtual

    def weight(self, name: str) -> float:
        """Its share relative to others."""
        counter = self._counters.get(name)
        return self._ordered_weights.get(name) or (1.0 if counter is None else counter.weight)

    def order_weights(self, weights: Mapping[str, float]) -> None:
        """From now on these weights count, whatever the requests say."""
        self._ordered_weights = weights

    @property
    def smallest(self) -> float:
        """The smallest counter of those who wait; without any, of who waited last."""
        first = self.first()
        if first is not None:
            return self._counters[first].virtual
        return 0.0 if self._last_to_leave is None else self.virtual(self._last_to_leave)

    def first(self) -> str | None:
        """Who waits and has the smallest counter; of equals, who began to wait first."""
        order = self._order
        while order:
            seen = order[0]
            name = seen[2]
            counter = self._counters[name]
            if not counter.num_waiting:
                heappop(order)
                counter.is_in_order = False
            elif seen[0] == counter.virtual and seen[1] == counter.turn:
                return name
            else:  # counters only grow, so that all behind it were seen with no less than they had
                heapreplace(order, (counter.virtual, counter.turn, name))
        return None

    def ahead(self, most: int) -> list[str]:
        """Those who wait, the smallest counter first: at most so many."""
        found: list[tuple[float, int, str]] = []
        while len(found) < most and self.first() is not None:
            found.append(heappop(self._order))
        for place in found:
            heappush(self._order, place)
        return [name for _, _, name in found]

    def __len__(self) -> int:
        """How many have a counter: who waits, and who did."""
        return len(self._counters)

    def __contains__(self, name: str) -> bool:
        return name in self._counters

    def _begin_to_wait(self, name: str, counter: _Counter) -> None:
        counter.virtual = max(counter.virtual, self.smallest)
        self._num_turns += 1
        counter.turn = self._num_turns
        if not counter.is_in_order:  # else it is there from the last time, with no more than it has now
            counter.is_in_order = True
            heappush(self._order, (counter.virtual, counter.turn, name))

    def _forget_the_idle(self) -> None:
        """A counter that a lift would pass over anyway says nothing."""
        floor = self.smallest
        self._counters = {
            name: counter
            for name, counter in self._counters.items()
            if counter.num_waiting or counter.virtual >= floor
        }
        self._order = [place for place in self._order if place[2] in self._counters]
        heapify(self._order)
        self._num_before_forgetting = max(MANY_NAMES, 2 * len(self._counters))
