"""Is the service as quick as promised? Ten-second windows of what interactive requests met, against `[slo]`.

Pure: samples and `now` (seconds, monotonic) come from outside.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

WINDOW_SECONDS = 10.0
FIVE_MINUTES_WINDOWS = 30
HISTORY_WINDOWS = 360  # one hour: what "minutes in breach" looks back on

# Bounds grow by 5 %, from 0.1 ms to over an hour: a percentile is right within 5 %, and histograms merge.
_BOUNDS_MS = [0.1 * 1.05**step for step in range(360)]


class LatencyHistogram:
    """Counts of durations in milliseconds, in fixed log-linear buckets that can be added up."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.num_samples = 0

    def add(self, milliseconds: float) -> None:
        """Counts one duration."""
        bucket = bisect_left(_BOUNDS_MS, milliseconds)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.num_samples += 1

    def merge(self, other: "LatencyHistogram") -> None:
        """Adds all of another histogram's samples."""
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.num_samples += other.num_samples

    def quantile(self, share: float) -> float | None:
        """The duration that `share` of the samples do not exceed, or None without samples."""
        if self.num_samples == 0:
            return None
        rank, seen = share * self.num_samples, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return _BOUNDS_MS[min(bucket, len(_BOUNDS_MS) - 1)]
        return _BOUNDS_MS[-1]


@dataclass(frozen=True, kw_only=True)
class SloTargets:
    """The promises, under the published names of `[slo]`."""

    ttft_p95_ms: float = 1500
    itl_p95_ms: float = 120
    queue_wait_p95_ms: float = 500
    kv_cache_utilization_max: float = 0.88
    admission_reject_rate_max: float = 0.01


@dataclass
class Window:
    """What was measured during ten seconds."""

    started_at: float
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    itl: LatencyHistogram = field(default_factory=LatencyHistogram)
    queue_wait: LatencyHistogram = field(default_factory=LatencyHistogram)
    kv_cache_utilization: float = 0.0  # the highest seen
    num_admitted: int = 0
    num_refused: int = 0
    breached: frozenset[str] = frozenset()  # names of missed targets, once the window is over


@dataclass(frozen=True)
class SloReading:
    """One promise: target, value in the window that is running (or just ended), over five minutes, breach."""

    name: str
    target: float
    now: float | None
    five_minutes: float | None
    minutes_in_breach: int


class SloMonitor:
    """Collects samples into windows and reads them against the targets."""

    def __init__(self, targets: SloTargets, now: float) -> None:
        self._targets = targets
        self._current = Window(started_at=now)
        self._history: deque[Window] = deque(maxlen=HISTORY_WINDOWS)

    def window(self, now: float) -> Window:
        """The window that samples of `now` belong to."""
        if now - self._current.started_at >= WINDOW_SECONDS:
            self._current.breached = self._missed_targets(self._current)
            self._history.append(self._current)
            elapsed = int((now - self._current.started_at) / WINDOW_SECONDS)
            self._current = Window(started_at=self._current.started_at + elapsed * WINDOW_SECONDS)
        return self._current

    def readings(self, now: float) -> tuple[SloReading, ...]:
        """One reading per key of `[slo]`, in the order of SloTargets."""
        self.window(now)
        recent = [window for window in self._all() if now - window.started_at < 2 * WINDOW_SECONDS]
        horizon = now - FIVE_MINUTES_WINDOWS * WINDOW_SECONDS
        five_minutes = [window for window in self._all() if window.started_at >= horizon]
        return tuple(
            SloReading(
                name=key.name,
                target=getattr(self._targets, key.name),
                now=_MEASURES[key.name](recent),
                five_minutes=_MEASURES[key.name](five_minutes),
                minutes_in_breach=self._minutes_in_breach(key.name, now),
            )
            for key in fields(self._targets)
        )

    def _missed_targets(self, window: Window) -> frozenset[str]:
        values = {name: measure([window]) for name, measure in _MEASURES.items()}
        return frozenset(
            name
            for name, value in values.items()
            if value is not None and value > getattr(self._targets, name)
        )

    def _minutes_in_breach(self, name: str, now: float) -> int:
        """Minutes of the last hour in which at least one window missed its target."""
        return len(
            {int((now - window.started_at) // 60) for window in self._history if name in window.breached}
        )

    def _all(self) -> list[Window]:
        return [*self._history, self._current]


Measure = Callable[[Iterable[Window]], float | None]


def _p95(histograms: Iterable[LatencyHistogram]) -> float | None:
    merged = LatencyHistogram()
    for histogram in histograms:
        merged.merge(histogram)
    return merged.quantile(0.95)


def _refused_share(windows: Iterable[Window]) -> float | None:
    counts = [(window.num_refused, window.num_admitted) for window in windows]
    refused, admitted = sum(count[0] for count in counts), sum(count[1] for count in counts)
    return refused / (refused + admitted) if refused + admitted else None


_MEASURES: dict[str, Measure] = {
    "ttft_p95_ms": lambda windows: _p95(window.ttft for window in windows),
    "itl_p95_ms": lambda windows: _p95(window.itl for window in windows),
    "queue_wait_p95_ms": lambda windows: _p95(window.queue_wait for window in windows),
    "kv_cache_utilization_max": lambda windows: max(
        (window.kv_cache_utilization for window in windows), default=None
    ),
    "admission_reject_rate_max": _refused_share,
}
