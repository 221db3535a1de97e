"""How much cache memory what runs will need at its peak, predicted from lengths; holds no blocks. Pure."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter

from engine.core.sequence import SequenceClass

LEAST_LENGTHS = 16
LENGTH_DECAY = 1 - 1 / 256  # of an answer's weight, with each later one
REFRESH_LENGTHS = 8  # a table serves so many answers before it is made anew
UNKNOWN_LENGTH = 1 << 62  # longer than any limit: where no answer was so long yet, the limit decides
QUANTILES = (0.8, 0.85, 0.9, 0.95, 0.99)
STEPS_PER_QUANTILE = 150

LEAST_SEQUENCES = 32
SEQUENCE_WEIGHT = 1 / 256  # of the latest sequence, once there were so many
CAP_DEVIATIONS = 1.645  # 5 % of full batches would need more


def _geometric_bounds() -> list[int]:
    bounds = [1]
    while bounds[-1] < 1 << 20:
        bounds.append(max(bounds[-1] + 1, int(bounds[-1] * 1.15)))
    return bounds


_BOUNDS = _geometric_bounds()  # of output lengths, each the largest of its bucket


class _LengthHistogram:
    """How often answers of each length ended; the latest weigh most."""

    def __init__(self) -> None:
        self.num_lengths = 0
        self._weights = [0.0] * len(_BOUNDS)
        self._next_weight = 1.0
        self._ends: list[int] = []  # by bucket of the tokens generated: where such answers end
        self._ends_quantile = 0.0
        self._refresh_at = LEAST_LENGTHS

    def add(self, num_tokens: int) -> None:
        self.num_lengths += 1
        self._weights[min(bisect_left(_BOUNDS, num_tokens), len(_BOUNDS) - 1)] += self._next_weight
        # Growing the next weight instead of shrinking all; brought down before it gets large.
        self._next_weight /= LENGTH_DECAY
        if self._next_weight > 1e6:
            self._weights = [weight / self._next_weight for weight in self._weights]
            self._next_weight = 1.0

    def end(self, num_generated: int, quantile: float) -> int:
        """The length that `quantile` of the answers longer than `num_generated` do not exceed."""
        if self.num_lengths >= self._refresh_at or quantile != self._ends_quantile:
            self._refresh(quantile)
        return self._ends[bisect_right(_BOUNDS, num_generated)]

    def _refresh(self, quantile: float) -> None:
        """One pass from the longest down: the bucket that ends enough of a tail moves down with the tail."""
        self._refresh_at, self._ends_quantile = self.num_lengths + REFRESH_LENGTHS, quantile
        self._ends = [UNKNOWN_LENGTH] * (len(_BOUNDS) + 1)
        tail = beyond = 0.0  # the weight from this bucket on, and of what is longer than `end`
        end = len(_BOUNDS) - 1
        for start in range(len(_BOUNDS) - 1, -1, -1):
            tail += self._weights[start]
            while end > start and beyond + self._weights[end] <= (1 - quantile) * tail:
                beyond += self._weights[end]
                end -= 1
            if tail > 0:
                self._ends[start] = _BOUNDS[end]


class OutputLengths:
    """How long answers get, by tenant and class; where too little is known, by class, and then the limit.

    After a preemption that prediction failed to avert it assumes longer answers, and slowly trusts again:
    the feedback of SGLang's new_token_ratio, applied to a quantile of what was seen.
    """

    def __init__(self, max_tenants: int = 512) -> None:
        self._max_tenants = max_tenants
        self._by_class = {each: _LengthHistogram() for each in SequenceClass}
        self._by_tenant: dict[SequenceClass, dict[str, _LengthHistogram]] = {
            each: {} for each in SequenceClass
        }
        self._num_cautious_steps = 0
        self._quantile = QUANTILES[0]

    @property
    def quantile(self) -> float:
        """The share of answers that should end within what is expected of them."""
        return self._quantile

    def note_forced_preemption(self) -> None:
        """Blocks ran out although all should have fitted: assume longer answers."""
        longest = STEPS_PER_QUANTILE * (len(QUANTILES) - 1)
        self._be_cautious_for(min(longest, self._num_cautious_steps + STEPS_PER_QUANTILE))

    def note_step(self) -> None:
        """A step went by: caution fades."""
        self._be_cautious_for(max(0, self._num_cautious_steps - 1))

    def observe(self, tenant: str, sequence_class: SequenceClass, num_output_tokens: int) -> None:
        """Learns the length of an answer that came to its own end."""
        self._by_class[sequence_class].add(num_output_tokens)
        tenants = self._by_tenant[sequence_class]
        histogram = tenants.pop(tenant, None) or _LengthHistogram()
        histogram.add(num_output_tokens)
        tenants[tenant] = histogram  # now the last in order of use
        if len(tenants) > self._max_tenants:
            del tenants[next(iter(tenants))]

    def expected_remaining(
        self, tenant: str, sequence_class: SequenceClass, generated: int, most: int
    ) -> int:
        """How many tokens an answer of `generated` will still get, from 1 to `most` (at least 1)."""
        histogram = self._by_tenant[sequence_class].get(tenant)
        if histogram is None or histogram.num_lengths < LEAST_LENGTHS:
            histogram = self._by_class[sequence_class]
            if histogram.num_lengths < LEAST_LENGTHS:
                return max(1, most)
        # Above zero already; compared by hand because it is asked for every running sequence in every step.
        expected = histogram.end(generated, self._quantile) - generated
        return expected if expected < most else max(1, most)

    def _be_cautious_for(self, num_steps: int) -> None:
        self._num_cautious_steps = num_steps
        self._quantile = QUANTILES[-(-num_steps // STEPS_PER_QUANTILE)]


class PeakForecast:
    """The most blocks that sequences will hold at any moment, each growing by a token a step until its end.

    LightLLM's Past-Future estimate (arXiv 2507.10150), in blocks rounded up for each sequence. Need only
    falls when a sequence ends, so the peak is at one of the ends: at each, those that end later have grown
    by the same number of tokens.
    """

    def __init__(self, block_size: int, held: Iterable[tuple[int, int]], base_blocks: int = 0) -> None:
        """`held`: (tokens now, tokens remaining) of each. `base_blocks`: held whatever they do."""
        self._block_size = block_size
        self._base_blocks = base_blocks
        by_end = sorted(held, key=itemgetter(1))
        self._padded = [now + block_size - 1 for now, _ in by_end]  # so that division rounds up
        self._remaining = [remaining for _, remaining in by_end]  # ascending
        self._needs = self._needs_at_ends()  # blocks when the sequence ends, of it and all after it

    def peak_blocks_with(self, now_tokens: int, remaining: int) -> int:
        """The peak if a sequence of `now_tokens` that gets `remaining` more were there too."""
        block_size, ends, needs = self._block_size, self._remaining, self._needs
        padded = now_tokens + block_size - 1
        position = bisect_left(ends, remaining)
        peak = self._need_at(position, remaining) + (padded + remaining) // block_size
        for index in range(position):
            need = needs[index] + (padded + ends[index]) // block_size
            if need > peak:
                peak = need
        return self._base_blocks + max(peak, max(islice(needs, position, None), default=0))

    def add(self, now_tokens: int, remaining: int) -> None:
        """Counts in a sequence that was admitted."""
        block_size, ends, needs = self._block_size, self._remaining, self._needs
        padded = now_tokens + block_size - 1
        position = bisect_left(ends, remaining)
        need = self._need_at(position, remaining) + (padded + remaining) // block_size
        for index in range(position):
            needs[index] += (padded + ends[index]) // block_size
        ends.insert(position, remaining)
        needs.insert(position, need)
        self._padded.insert(position, padded)

    def _need_at(self, position: int, num_steps: int) -> int:
        """Blocks of the sequences from `position` on, after so many steps."""
        block_size, need = self._block_size, 0
        for padded in islice(self._padded, position, None):
            need += (padded + num_steps) // block_size
        return need

    def _needs_at_ends(self) -> list[int]:
        """What `_need_at` gives at every end, in one pass.

        floor((padded + steps) / size) is the sum of both floors, and one more if the remainders reach a
        block together. So the sum over many needs only their floors and how often each remainder occurs.
        """
        size = self._block_size
        needs, num_floors, num_by_remainder = [], 0, [0] * size
        by_latest_end = zip(reversed(self._padded), reversed(self._remaining), strict=True)
        for count, (padded, remaining) in enumerate(by_latest_end, start=1):
            num_floors += padded // size
            num_by_remainder[padded % size] += 1
            num_carries = sum(num_by_remainder[size - remaining % size :])
            needs.append(num_floors + count * (remaining // size) + num_carries)
        needs.reverse()
        return needs


class SequenceCap:
    """How many sequences fit side by side with high probability, from how large recent ones became.

    N * mean + z * deviation * sqrt(N) <= usable tokens: the sum of N sizes is nearly normal. The idea is
    that of memory-aware dynamic batching (arXiv 2503.05248); the closed form here is our own.
    """

    def __init__(self) -> None:
        self._num_samples = 0
        self._mean = 0.0
        self._variance = 0.0

    def observe(self, num_tokens: int) -> None:
        """Learns the whole size, prompt and output, of a sequence that ended."""
        self._num_samples += 1
        weight = max(1 / self._num_samples, SEQUENCE_WEIGHT)
        difference = num_tokens - self._mean
        self._mean += weight * difference
        self._variance = (1 - weight) * (self._variance + weight * difference * difference)

    def most_sequences(self, usable_tokens: int) -> int | None:
        """The cap, at least 1; None while too few sequences ended to tell."""
        if self._num_samples < LEAST_SEQUENCES or self._mean <= 0:
            return None
        margin = CAP_DEVIATIONS * math.sqrt(self._variance)
        root = (math.sqrt(margin * margin + 4 * self._mean * max(0, usable_tokens)) - margin) / (
            2 * self._mean
        )
        return max(1, int(root * root + 1e-9))
