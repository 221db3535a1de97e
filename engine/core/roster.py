"""Who waits, who runs, and what each tenant was charged. Moves sequences; decides nothing."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from engine.core.charging import CACHED_TOKEN_COST, PROMPT_TOKEN_COST, sampled_token_cost
from engine.core.sequence import Sequence, SequenceClass
from engine.core.service import RecentService
from engine.core.waiting import WaitingRoom


class Roster:
    """Every sequence is in exactly one place: waiting (new, or parked after it ran) or running."""

    def __init__(self) -> None:
        self.rooms = {sequence_class: WaitingRoom() for sequence_class in SequenceClass}
        self.running: dict[str, Sequence] = {}
        self.parked: dict[str, Sequence] = {}  # these wait, too, at the heads of their tenants' lines
        self.num_running: Counter[SequenceClass] = Counter()
        self._num_running_of: Counter[str] = Counter()
        self.service = RecentService()

    def __iter__(self) -> Iterator[Sequence]:
        """Every sequence."""
        return chain(self.running.values(), self.waiting())

    def waiting(self) -> Iterator[Sequence]:
        """Those that do not run."""
        return chain.from_iterable(self.rooms.values())

    def started(self) -> Iterator[Sequence]:
        """Those that run or have run: they may hold blocks."""
        return chain(self.running.values(), self.parked.values())

    def num_running_of(self, tenant: str) -> int:
        """How many sequences of a tenant run, of both classes."""
        return self._num_running_of[tenant]

    def running_offline(self) -> list[Sequence]:
        """Offline sequences of the running set."""
        if not self.num_running[SequenceClass.OFFLINE]:
            return []
        return [each for each in self.running.values() if not each.is_interactive]

    def room_of(self, sequence: Sequence) -> WaitingRoom:
        """Where the sequence's class waits."""
        return self.rooms[sequence.sequence_class]

    def virtual(self, sequence: Sequence) -> float:
        """The fair-share counter of the sequence's tenant."""
        return self.room_of(sequence).share.virtual(sequence.tenant)

    def check_integrity(self) -> None:
        """Raises AssertionError unless every sequence is in one place and the counts agree."""
        waiting = [sequence.id for sequence in self.waiting()]
        assert len(waiting) == len(set(waiting)), "a sequence waits twice"
        assert not self.running.keys() & set(waiting), "a sequence waits and runs"
        assert self.parked.keys() <= set(waiting), "a parked sequence does not wait"
        running = Counter(sequence.sequence_class for sequence in self.running.values())
        assert +running == +self.num_running, "the counts of who runs are wrong"
        tenants = Counter(sequence.tenant for sequence in self.running.values())
        assert tenants == self._num_running_of, "the counts of whose sequences run are wrong"

    # --- moves -----------------------------------------------------------------------------------------

    def start(self, sequence: Sequence) -> None:
        """From waiting to running."""
        self.room_of(sequence).take(sequence)
        sequence.token_cost = sampled_token_cost(sequence.params)
        self.parked.pop(sequence.id, None)
        self.running[sequence.id] = sequence
        self.num_running[sequence.sequence_class] += 1
        self._num_running_of[sequence.tenant] += 1

    def park(self, sequence: Sequence, *, is_long: bool) -> None:
        """From running back to waiting, before whatever of its tenant came later."""
        self._stop(sequence)
        self.parked[sequence.id] = sequence
        self.room_of(sequence).push_front(sequence, is_long=is_long)

    def remove(self, sequence: Sequence) -> None:
        """Out of wherever it is."""
        if sequence.id in self.running:
            self._stop(sequence)
        else:
            self.parked.pop(sequence.id, None)
            self.room_of(sequence).take(sequence)

    def _stop(self, sequence: Sequence) -> None:
        del self.running[sequence.id]
        self.num_running[sequence.sequence_class] -= 1
        self._num_running_of[sequence.tenant] -= 1
        if not self._num_running_of[sequence.tenant]:
            del self._num_running_of[sequence.tenant]

    # --- charges ---------------------------------------------------------------------------------------

    def charge_decodes(self, sequences: list[Sequence], now: float) -> float:
        """Charges a token of output to each; returns what it came to. All are of one class."""
        if not sequences:
            return 0.0
        room = self.room_of(sequences[0])
        costs: dict[str, float] = {}
        for sequence in sequences:
            sequence.num_charged_tokens = len(sequence.token_ids)
            tenant = sequence.tenant
            costs[tenant] = costs.get(tenant, 0.0) + sequence.token_cost
        for tenant, cost in costs.items():
            room.share.charge(tenant, cost)
            self.service.add(tenant, cost, now)
        shared = room.shared
        if (
            shared
        ):  # else nothing within a tenant is told apart, and one by one costs more than all of the above
            for sequence in sequences:
                if sequence.tenant in shared:
                    room.charge_within(sequence, sequence.token_cost)
        return sum(costs.values())

    def charge_chunk(self, sequence: Sequence, end: int, now: float) -> float:
        """Charges what lies before `end` and was not charged yet, and a token of output if one is sampled."""
        charged = sequence.num_charged_tokens
        if end <= charged:
            return 0.0  # computed again after a preemption: its victim has paid for it
        cost = max(0, min(end, sequence.num_prompt_tokens) - charged) * PROMPT_TOKEN_COST
        if end == sequence.num_tokens:
            cost += sequence.token_cost
        sequence.num_charged_tokens = end
        return self._charge(sequence, cost, now)

    def charge_cached(self, sequence: Sequence, now: float) -> float:
        """Charges what an admission found in the cache and was not charged before."""
        num_tokens = max(0, sequence.num_computed_tokens - sequence.num_charged_tokens)
        sequence.num_charged_tokens += num_tokens
        return self._charge(sequence, num_tokens * CACHED_TOKEN_COST, now)

    def _charge(self, sequence: Sequence, cost: float, now: float) -> float:
        room = self.room_of(sequence)
        room.share.charge(sequence.tenant, cost)
        room.charge_within(sequence, cost)
        self.service.add(sequence.tenant, cost, now)
        return cost
