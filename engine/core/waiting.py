"""What waits in one class, and who of it comes next: short prompts in one lane, long ones in another."""

from bisect import insort
from collections.abc import Iterator
from itertools import chain, islice

from engine.core.fair_share import FairShare
from engine.core.lines import Lines
from engine.core.sequence import Sequence

MAX_TENANTS_AHEAD = 4  # who are compared when more than one may be next
MAX_ITEMS_AHEAD = 2  # of one line


class WaitingRoom:
    """Lines of tenants in each lane; one counter per tenant over both.

    Within a tenant short prompts go before long ones, so its projects and keys share in each lane apart.
    """

    def __init__(self) -> None:
        self.share = FairShare()
        self.short: Lines[Sequence] = Lines()
        self.long: Lines[Sequence] = Lines()

    def push(self, sequence: Sequence, *, is_long: bool) -> None:
        """Puts a new sequence at the end of its line."""
        lane = self.long if is_long else self.short
        lane.push(tenant=sequence.tenant, key=sequence.id, item=sequence, within=sequence.within)
        self.share.enter(sequence.tenant, sequence.weight)

    def push_front(self, sequence: Sequence, *, is_long: bool) -> None:
        """Puts a sequence that ran before at the head of its line."""
        lane = self.long if is_long else self.short
        lane.push_front(tenant=sequence.tenant, key=sequence.id, item=sequence, within=sequence.within)
        self.share.enter(sequence.tenant, sequence.weight)

    def take(self, sequence: Sequence) -> None:
        """Takes a waiting sequence out."""
        (self.long if sequence.id in self.long else self.short).take(sequence.id)
        self.share.leave(sequence.tenant)

    def charge_within(self, sequence: Sequence, cost: float) -> None:
        """Counts service among the projects and keys of the sequence's tenant, if something of it waits."""
        for lane in (self.short, self.long):
            lane.charge(tenant=sequence.tenant, within=sequence.within, cost=cost)

    @property
    def shared(self) -> set[str]:
        """Tenants of whom several projects or keys have a part in what is next."""
        return self.short.shared | self.long.shared

    def num_waiting(self, tenant: str) -> int:
        """How many of a tenant's wait."""
        return self.short.num_waiting(tenant) + self.long.num_waiting(tenant)

    def backlog_tokens(self, tenant: str) -> int:
        """What a tenant's waiting sequences have still to compute, prompts and whole answers."""
        lines = chain(self.short.all_of(tenant), self.long.all_of(tenant))
        return sum(
            sequence.num_uncomputed_tokens + sequence.params.max_tokens - sequence.num_output_tokens
            for sequence in chain.from_iterable(lines)
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
    """Who comes next during one step, of some tenants who wait in some lanes.

    The tenant with the smallest counter is first; whoever is no more than a quantum behind it may go before
    it, for the sake of a longer cached prefix (deficit longest prefix match, Cao et al. 2025). Within a
    tenant the first lane goes before the second, and in a lane who is charged least of its keys.
    """

    def __init__(
        self, lanes: tuple[Lines[Sequence], ...], tenants: set[str], share: FairShare, *, quantum: float
    ) -> None:
        self._lanes = lanes
        self._share = share
        self._quantum = quantum
        self._set_aside: set[str] = set()
        self._order = sorted(self._place(tenant) for tenant in tenants)

    def candidates(self) -> list[Sequence]:
        """Those who may be next, in fair order; the first is whose turn it is."""
        found: list[Sequence] = []
        num_tenants, last_virtual = 0, float("inf")
        for virtual, _, tenant in self._order:
            if virtual > last_virtual or num_tenants == MAX_TENANTS_AHEAD:
                break
            ahead = self._ahead(tenant)
            if ahead and not found:
                last_virtual = virtual + self._quantum
            found.extend(ahead)
            num_tenants += bool(ahead)
        return found

    def set_aside(self, sequence: Sequence) -> None:
        """It cannot be taken in this step."""
        self._set_aside.add(sequence.id)

    def close(self) -> None:
        """Nobody else is taken in this step."""
        self._order.clear()

    def was_taken(self, sequence: Sequence) -> None:
        """Its tenant has been charged since."""
        tenant = sequence.tenant
        self._order = [place for place in self._order if place[2] != tenant]
        if any(lane.num_waiting(tenant) for lane in self._lanes):
            insort(self._order, self._place(tenant))

    def _place(self, tenant: str) -> tuple[float, float, str]:
        """Among equals, whoever came first."""
        heads = [lane.head(tenant).arrived_at for lane in self._lanes if lane.num_waiting(tenant)]
        return self._share.virtual(tenant), min(heads), tenant

    def _ahead(self, tenant: str) -> list[Sequence]:
        ahead: list[Sequence] = []
        for lane in self._lanes:
            ahead.extend(self._ahead_in(lane, tenant))
        return ahead

    def _ahead_in(self, lane: Lines[Sequence], tenant: str) -> list[Sequence]:
        """The next of the first of the tenant's keys that can go on."""
        for line in lane.ahead(tenant):
            ahead = [each for each in islice(line, MAX_ITEMS_AHEAD) if each.id not in self._set_aside]
            if ahead:
                return ahead
        return []
