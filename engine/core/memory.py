"""The cache as something that is granted: does a sequence fit, now and at its peak, and who gives blocks
back.

Knows blocks and forecasts; whose turn it is, the scheduler says.
"""

from collections.abc import Callable

from engine.core.figures import Figures, FreeCause
from engine.core.forecast import OutputLengths, PeakForecast, SequenceCap
from engine.core.kv_cache import KvCache
from engine.core.preemption import victim
from engine.core.sequence import Sequence, SequenceClass


class Memory:
    """Grants cache blocks, takes them back, and counts both."""

    def __init__(self, kv_cache: KvCache, figures: Figures) -> None:
        self.cache = kv_cache
        self._figures = figures
        self._lengths = OutputLengths()
        self._cap = SequenceCap()
        self._num_promised_blocks = dict.fromkeys(SequenceClass, 0)
        self._forecasts: dict[SequenceClass, PeakForecast] = {}

    # --- does it fit -----------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """What runs has changed since: forecasts are made anew when they are asked for."""
        self._forecasts.clear()
        self._lengths.note_step()

    def fits(
        self,
        sequence: Sequence,
        competitors: Callable[[Sequence], list[Sequence]],
        *,
        usable_blocks: int,
        reclaimable_blocks: int,
    ) -> bool:
        """Whether its whole known text has room now, and its answer probably has when memory is fullest.

        `competitors` of a sequence are the others that it does not make give way. The peak is Past-Future's
        (Gong et al., 2025): each of them grows by what answers of its tenant usually have left.
        """
        needed = self.cache.num_blocks_to_admit(sequence)
        if needed > self.cache.num_free_blocks + reclaimable_blocks:
            return False
        if self.cache.num_used_blocks - reclaimable_blocks + needed > usable_blocks:
            return False
        if self._all_fit_to_their_ends(sequence, usable_blocks):
            return True
        most = self._cap.most_sequences(usable_blocks * self.cache.block_size)
        if most is not None and len(competitors(sequence)) >= most:
            return False
        forecast = self._forecast(sequence, competitors)
        own_tokens = sequence.num_tokens - self._borrowed_tokens(sequence, needed)
        peak = forecast.peak_blocks_with(own_tokens, self.expected_remaining(sequence))
        return peak <= usable_blocks

    def _forecast(
        self, sequence: Sequence, competitors: Callable[[Sequence], list[Sequence]]
    ) -> PeakForecast:
        """Made once a step for all newcomers of a class; who ran before has itself not to reckon with."""
        if sequence.scheduled_at is not None:
            return self._forecast_of(competitors(sequence))
        if sequence.sequence_class not in self._forecasts:
            self._forecasts[sequence.sequence_class] = self._forecast_of(competitors(sequence))
        return self._forecasts[sequence.sequence_class]

    def _forecast_of(self, sequences: list[Sequence]) -> PeakForecast:
        held = [(_own_tokens(each), self.expected_remaining(each)) for each in sequences]
        return PeakForecast(self.cache.block_size, held)

    def _all_fit_to_their_ends(self, sequence: Sequence, usable_blocks: int) -> bool:
        """Whether all have room for their longest answers at once: then nothing is to be foretold."""
        promised = self._num_promised_blocks[SequenceClass.INTERACTIVE]
        if not sequence.is_interactive:
            promised += self._num_promised_blocks[SequenceClass.OFFLINE]
        return promised + self._whole_blocks(sequence) - sequence.num_promised_blocks <= usable_blocks

    def _whole_blocks(self, sequence: Sequence) -> int:
        return self.cache.blocks_for(sequence.num_prompt_tokens + sequence.params.max_tokens)

    # --- grant and take back ---------------------------------------------------------------------------

    def admit(self, sequence: Sequence) -> None:
        """Gives each known token of a sequence that fits a slot; what is cached counts as computed."""
        needed = self.cache.num_blocks_to_admit(sequence)
        sequence.num_borrowed_tokens = self._borrowed_tokens(sequence, needed)
        assert self.cache.admit(sequence), f"{sequence.id} was found to fit"
        self._promise(sequence, self._whole_blocks(sequence))
        forecast = self._forecasts.get(sequence.sequence_class)
        if sequence.scheduled_at is not None:
            self._forecasts.clear()  # others reckoned with it already, as it was
        elif forecast is not None:
            forecast.add(_own_tokens(sequence), self.expected_remaining(sequence))

    def reclaim(
        self,
        needed: Callable[[], int],
        *,
        holders: list[Sequence],
        virtual: Callable[[Sequence], float],
        spared: tuple[Sequence | None, ...],
    ) -> list[Sequence]:
        """Takes tail blocks from `holders` until `needed()` are free; returns who lost some.

        It stops when nobody but the spared has any.
        """
        losers: list[Sequence] = []
        while (missing := needed() - self.cache.num_free_blocks) > 0:
            loser = victim((each for each in holders if each.block_table), virtual=virtual, spared=spared)
            if loser is None:
                break
            self._release_tail(loser, missing)
            losers.append(loser)
        return losers

    def give_back(self, sequence: Sequence, cause: FreeCause) -> None:
        """Takes all of a sequence's blocks; text that was computed stays cached as long as room allows."""
        self._figures.num_blocks_freed[cause] += len(sequence.block_table)
        self.cache.release(sequence)
        self._promise(sequence, 0)

    def _promise(self, sequence: Sequence, num_blocks: int) -> None:
        """Keeps count of what those that started may need in all."""
        self._num_promised_blocks[sequence.sequence_class] += num_blocks - sequence.num_promised_blocks
        sequence.num_promised_blocks = num_blocks

    def learn_from(self, sequence: Sequence) -> None:
        """A sequence came to its own end: so long do answers get."""
        self._lengths.observe(sequence.tenant, sequence.sequence_class, sequence.num_output_tokens)
        self._cap.observe(sequence.num_tokens)

    def learn_from_shortage(self) -> None:
        """Somebody interactive had to give way: forecasts were too bold."""
        self._lengths.note_forced_preemption()

    def _release_tail(self, sequence: Sequence, num_blocks: int) -> None:
        before = len(sequence.block_table)
        self.cache.release_tail(sequence, num_blocks)
        self._figures.num_blocks_freed[FreeCause.PREEMPTED] += before - len(sequence.block_table)

    def _borrowed_tokens(self, sequence: Sequence, num_blocks_to_admit: int) -> int:
        borrowed = self.cache.missing_blocks(sequence) - num_blocks_to_admit
        return borrowed * self.cache.block_size

    def expected_remaining(self, sequence: Sequence) -> int:
        """How many tokens of output are thought to be still to come."""
        generated = len(sequence.token_ids) - sequence.num_prompt_tokens
        if generated >= sequence.num_expected_output_tokens:
            remaining = self._lengths.expected_remaining(
                sequence.tenant, sequence.sequence_class, generated, sequence.params.max_tokens - generated
            )
            sequence.num_expected_output_tokens = generated + remaining
        return sequence.num_expected_output_tokens - generated


def _own_tokens(sequence: Sequence) -> int:
    return len(sequence.token_ids) - sequence.num_borrowed_tokens
