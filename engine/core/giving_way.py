"""Who gives up a seat or blocks when others need them, and who never does."""

from collections.abc import Callable

from engine.core import admission
from engine.core.figures import Figures, FreeCause
from engine.core.limits import Limits
from engine.core.memory import Memory
from engine.core.preemption import oldest_interactive, victim, weaker
from engine.core.restraint import Restraint
from engine.core.roster import Roster
from engine.core.sequence import Sequence, SequenceClass


class GivingWay:
    """Parks sequences and takes tail blocks back. The oldest interactive sequence loses nothing."""

    def __init__(self, *, roster: Roster, memory: Memory, restraint: Restraint, figures: Figures) -> None:
        self.parked_now: set[str] = set()  # in the present step
        self._roster = roster
        self._memory = memory
        self._restraint = restraint
        self._figures = figures

    def vacate_seats(self, *, for_more: int = 0) -> None:
        """Offline work gets up when seats are too few, and leaves when the guardrails say so."""
        if self._restraint.restrictions.preempts_offline:
            for sequence in self._started_offline():
                self._memory.give_back(sequence, FreeCause.PREEMPTED)
                if sequence.id in self._roster.running:
                    self.park(sequence)
        while len(self._roster.running) + for_more > self._restraint.limits.max_num_seqs:
            loser = victim(self._roster.running_offline(), virtual=self._roster.virtual)
            if loser is None:
                return
            self.park(loser)

    def make_room_for_growth(self, sequence: Sequence) -> None:
        """Takes blocks for one more token from who gives way before it; if there are none, it gives way."""
        holders = list(self._roster.started())
        if sequence is not oldest_interactive(holders):
            holders = weaker(holders, sequence, virtual=self._roster.virtual)
        losers = self.reclaim(sequence, self._memory.cache.missing_blocks, holders)
        if any(loser.is_interactive for loser in losers):
            self._memory.learn_from_shortage()
        if not self._memory.cache.grow(sequence):
            self.park(sequence)

    def grow_offline(self, sequence: Sequence) -> bool:
        """Gives it a slot for one more token, in the part of the cache that offline work may hold."""
        cache = self._memory.cache
        if cache.has_room(sequence):
            return True
        most = admission.offline_blocks(cache, self._restraint.limits)

        def needed(each: Sequence) -> int:
            num_missing = cache.missing_blocks(each)
            num_beyond = self.num_offline_blocks() + num_missing - most
            return max(num_missing, cache.num_free_blocks + num_beyond)

        if needed(sequence) <= cache.num_free_blocks:
            return cache.grow(sequence)
        offline = self._started_offline()
        oldest = min(offline, key=lambda each: (each.arrived_at, each.id))
        self.reclaim(sequence, needed, [each for each in offline if each is not oldest])
        is_alone = all(each is sequence or not each.block_table for each in offline)
        return (is_alone or needed(sequence) <= cache.num_free_blocks) and cache.grow(sequence)

    def make_room_for_newcomer(self, sequence: Sequence) -> bool:
        """Offline work gives way to interactive; who is alone may have what parked ones hold."""
        cache, is_alone = self._memory.cache, not self._roster.running
        if is_alone:
            holders = list(self._roster.parked.values())
        elif sequence.is_interactive:
            holders = self._started_offline()
        else:
            holders = []
        part = admission.usable_blocks if sequence.is_interactive else admission.offline_blocks
        num_kept = cache.num_blocks - part(cache, self._restraint.limits) if holders else 0
        if holders:
            self.reclaim(sequence, lambda each: cache.num_blocks_to_admit(each) + num_kept, holders)
        if is_alone:
            num_kept = 0  # what ran before comes to its end, although limits may have shrunk below it
        return cache.num_blocks_to_admit(sequence) + num_kept <= cache.num_free_blocks

    def reclaim(
        self, beneficiary: Sequence, needed: Callable[[Sequence], int], holders: list[Sequence]
    ) -> list[Sequence]:
        """Takes tail blocks from `holders` until `needed` are free for the beneficiary; parks who ran."""
        losers = self._memory.reclaim(
            lambda: needed(beneficiary),
            holders=holders,
            virtual=self._roster.virtual,
            spared=(beneficiary, oldest_interactive(self._roster.started())),
        )
        for loser in losers:
            if loser.id in self._roster.running:
                self.park(loser)
        return losers

    def park(self, sequence: Sequence) -> None:
        """Takes its seat, but no block, from a sequence that runs; not to be taken up again in this step."""
        sequence.num_preemptions += 1
        self._figures.num_preemptions[sequence.sequence_class] += 1
        self.parked_now.add(sequence.id)
        self._roster.park(sequence, is_long=is_long(sequence, self._restraint.limits))

    def num_offline_blocks(self) -> int:
        """Blocks that offline sequences hold, whether they run or not."""
        return self._memory.cache.num_blocks_of(SequenceClass.OFFLINE)

    def _started_offline(self) -> list[Sequence]:
        if not self._roster.num_running[SequenceClass.OFFLINE] and not self._roster.parked:
            return []
        return [each for each in self._roster.started() if not each.is_interactive]


def is_long(sequence: Sequence, limits: Limits) -> bool:
    """Whether what is left of its prompt takes more than one chunk."""
    return sequence.num_uncomputed_tokens > limits.prefill_chunk_size
