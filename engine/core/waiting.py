"""What waits in one class, and who of it comes next: short prompts in one lane, long ones in another."""

from bisect import insort
from collections.abc import Iterator
from itertools import chain

from engine.core.fair_share import FairShare, Lines
from engine.core.sequence import Sequence

MAX_TENANTS_AHEAD = 8  # whose heads are compared for the longest cached prefix
MAX_ITEMS_AHEAD = 4  # of one tenant's line


class WaitingRoom:
    """A line per tenant in each lane; one counter per tenant over both."""

    def __init__(self) -> None:
        self.share = FairShare()
        self.short: Lines[Sequence] = Lines()
        self.long: Lines[Sequence] = Lines()

    def push(self, sequence: Sequence, *, is_long: bool) -> None:
        """Puts a new sequence at the end of its tenant's line."""
        lane = self.long if is_long else self.short
        lane.push(tenant=sequence.tenant, key=sequence.id, item=sequence)
        self.share.enter(sequence.tenant, sequence.weight)

    def push_front(self, sequence: Sequence, *, is_long: bool) -> None:
        """Puts a sequence that ran before at the head of its tenant's line."""
        lane = self.long if is_long else self.short
        lane.push_front(tenant=sequence.tenant, key=sequence.id, item=sequence)
        self.share.enter(sequence.tenant, sequence.weight)

    def take(self, sequence: Sequence) -> None:
        """Takes a waiting sequence out."""
        (self.long if sequence.id in self.long else self.short).take(sequence.id)
        self.share.leave(sequence.tenant)

    def num_waiting(self, tenant: str) -> int:
        """How many of a tenant's wait."""
        return self.short.num_waiting(tenant) + self.long.num_waiting(tenant)

    def backlog_tokens(self, tenant: str) -> int:
        """What a tenant's waiting sequences have still to compute, prompts and whole answers."""
        waiting = chain(self.short.line(tenant), self.long.line(tenant))
        return sum(
            sequence.num_uncomputed_tokens + sequence.params.max_tokens - sequence.num_output_tokens
            for sequence in waiting
        )

    @property
    def tenants(self) -> set[str]:
        """Whoever waits."""
        return {*self.short.tenants, *self.long.tenants}

    def __len__(self) -> int:
        return len(self.short) + len(self.long)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self.short or sequence.id in self.long

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self.short, self.long)


class Turns:
    """Who comes next in one lane during one step.

    The tenant with the smallest counter is first; whoever is no more than a quantum behind it may go before
    it, for the sake of a longer cached prefix (deficit longest prefix match, Cao et al. 2025).
    """

    def __init__(self, lane: Lines[Sequence], share: FairShare, *, quantum: float) -> None:
        self._lane = lane
        self._share = share
        self._quantum = quantum
        self._set_aside: set[str] = set()
        self._order = sorted(self._place(tenant) for tenant in lane.tenants)

    def candidates(self) -> list[Sequence]:
        """Those who may be next, in fair order; the first is whose turn it is."""
        found: list[Sequence] = []
        last_virtual = float("inf")
        for virtual, _, tenant in self._order:
            if virtual > last_virtual or len(found) >= MAX_TENANTS_AHEAD:
                break
            ahead = self._ahead(tenant)
            if ahead and not found:
                last_virtual = virtual + self._quantum
            found.extend(ahead)
        return found

    def set_aside(self, sequence: Sequence) -> None:
        """It cannot be taken in this step."""
        self._set_aside.add(sequence.id)

    def was_taken(self, sequence: Sequence) -> None:
        """Its tenant has been charged since."""
        tenant = sequence.tenant
        self._order = [place for place in self._order if place[2] != tenant]
        if self._lane.num_waiting(tenant):
            insort(self._order, self._place(tenant))

    def _place(self, tenant: str) -> tuple[float, float, str]:
        """Among equals, whoever came first."""
        return self._share.virtual(tenant), next(self._lane.line(tenant)).arrived_at, tenant

    def _ahead(self, tenant: str) -> list[Sequence]:
        ahead: list[Sequence] = []
        for position, sequence in enumerate(self._lane.line(tenant)):
            if sequence.id not in self._set_aside:
                ahead.append(sequence)
            if position + 1 == MAX_ITEMS_AHEAD:
                break
        return ahead
