"""How long things took, as counts in fixed buckets: percentiles that can be added up. Knows no clock."""

from bisect import bisect_left
from itertools import accumulate
from operator import add, sub

# Bounds grow by 5 %, from 0.1 ms to over an hour: a percentile is right within 5 %.
_BOUNDS_MS = [0.1 * 1.05**step for step in range(360)]


class LatencyHistogram:
    """Counts of durations in milliseconds, in log-linear buckets that are the same for all."""

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS_MS)
        self.num_samples = 0

    def add(self, milliseconds: float, count: int = 1) -> None:
        """Counts `count` equal durations. What is longer than the last bound counts as that."""
        self._counts[min(bisect_left(_BOUNDS_MS, milliseconds), len(_BOUNDS_MS) - 1)] += count
        self.num_samples += count

    def merge(self, other: "LatencyHistogram") -> None:
        """Adds all of another histogram's samples."""
        if other.num_samples:
            self._counts = list(map(add, self._counts, other._counts))
            self.num_samples += other.num_samples

    def unmerge(self, other: "LatencyHistogram") -> None:
        """Takes samples out again that were merged in."""
        if other.num_samples:
            self._counts = list(map(sub, self._counts, other._counts))
            self.num_samples -= other.num_samples

    def quantile(self, share: float) -> float | None:
        """The duration that `share` of the samples do not exceed, or None without samples."""
        if self.num_samples == 0:
            return None
        bucket = bisect_left(list(accumulate(self._counts)), share * self.num_samples)
        return _BOUNDS_MS[bucket]
