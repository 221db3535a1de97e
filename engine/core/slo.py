"""Is the service as quick as promised? Sliding windows of what interactive requests met, against `[slo]`.

Pure: samples and `now` (seconds, monotonic) come from outside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from engine.core.histogram import LatencyHistogram
from engine.core.windows import SlidingSum, Window

WINDOW_SECONDS = 10.0  # what is judged: the last ten seconds, moved on by one second at a time
MIN_SAMPLES = 20  # fewer in a window prove nothing
LATEST_SECONDS = 3.0  # is it still so?
FIVE_MINUTES_SECONDS = 300.0
HOUR_MINUTES = 60  # what "minutes in breach" looks back on
GUARD_SHARE = 0.9  # of the promised time between tokens that a step may take
QUEUE_WAIT = "queue_wait_p95_ms"
KV_UTILIZATION = "kv_cache_utilization_max"


def guarded_seconds(itl_guard_seconds: float, tail: float) -> float:
    """How long a step may be predicted to take: where steps vary much, shorter than the guard says.

    At the `tail` of what is predicted (see StepTimeModel) steps end within the guard. What the guard leaves
    of the promise is for the token's way to its reader.
    """
    return itl_guard_seconds / max(1.0, tail)


@dataclass(frozen=True, kw_only=True)
class SloTargets:
    """The promises, under the published names of `[slo]`."""

    ttft_p95_ms: float = 1500
    itl_p95_ms: float = 120
    queue_wait_p95_ms: float = 500
    kv_cache_utilization_max: float = 0.88
    admission_reject_rate_max: float = 0.01

    @property
    def itl_guard_seconds(self) -> float:
        """How long a step may take: a tenth below the promise, for the token's way to its reader."""
        return GUARD_SHARE * self.itl_p95_ms / 1000


@dataclass(frozen=True)
class Judged:
    """One promise over the last ten seconds. `latest` is the same over the last three; None: no samples."""

    name: str
    target: float
    value: float | None
    num_samples: int
    latest: float | None = None

    @property
    def share(self) -> float:
        """The value as a share of its target: above 1 is a breach. 0 where too little was measured to judge.

        A gauge (the cache's utilisation) needs no minimum of samples.
        """
        if self.value is None or (self.num_samples < MIN_SAMPLES and self.name != KV_UTILIZATION):
            return 0.0
        return self.value / self.target


@dataclass(frozen=True)
class SloReading:
    """One promise: target, value over the last ten seconds and over five minutes, minutes in breach."""

    name: str
    target: float
    now: float | None
    five_minutes: float | None
    minutes_in_breach: int


@dataclass(frozen=True)
class _Waiting:
    """Who waited when the loop last told."""

    at: float
    oldest_seconds: float = 0.0
    num_late: int = 0


class SloMonitor:
    """Collects samples by the second and reads them, merged, against the targets."""

    def __init__(self, targets: SloTargets, now: float) -> None:
        self.targets = targets
        self._origin = now
        self._running = Window(now)
        self._ten_seconds = SlidingSum(part_seconds=1.0, span_seconds=WINDOW_SECONDS, now=now)
        self._five_minutes = SlidingSum(
            part_seconds=WINDOW_SECONDS, span_seconds=FIVE_MINUTES_SECONDS, now=now
        )
        self._waiting = _Waiting(at=now)
        self._minutes_in_breach: dict[str, set[int]] = {key.name: set() for key in fields(targets)}

    def window(self, now: float) -> Window:
        """The second that samples of `now` belong to."""
        elapsed = int(now - self._running.started_at)
        if elapsed >= 1:
            ended, self._running = self._running, Window(self._running.started_at + elapsed)
            self._note_breaches(ended)
            self._ten_seconds.slide(ended, self._running.started_at)
            self._five_minutes.slide(ended, self._running.started_at)
        return self._running

    def note_waiting_age(self, now: float, oldest_seconds: float, num_late: int = 0) -> None:
        """Tells who waits now: how long the oldest interactive request has, and how many wait too long.

        To be told about every second, 0 when nobody waits; it holds for ten seconds. Who waits has no queue
        wait yet, so a stall would look like silence. Therefore the `num_late` requests that already wait
        longer than `queue_wait_p95_ms` are judged with those served, at the age of the oldest. And where
        fewer than MIN_SAMPLES were served or are late, but the oldest waited through a whole window, its
        age is the value, and counts as a full window.
        """
        self.window(now)
        self._waiting = _Waiting(now, oldest_seconds, num_late)

    def judged(self, now: float) -> tuple[Judged, ...]:
        """One judgement per key of `[slo]`, in the order of SloTargets, over the last ten seconds."""
        self.window(now)
        return self._judge(self._running, now)

    def readings(self, now: float) -> tuple[SloReading, ...]:
        """One reading per key of `[slo]`, in the order of SloTargets."""
        running = self.window(now)
        five_minutes = [*self._five_minutes.sums, running]
        return tuple(
            SloReading(
                name=each.name,
                target=each.target,
                now=each.value,
                five_minutes=_MEASURES[each.name](five_minutes),
                minutes_in_breach=self._num_minutes_in_breach(each.name, now),
            )
            for each in self.judged(now)
        )

    def _judge(self, last: Window, now: float) -> tuple[Judged, ...]:
        """The ten seconds that end with the second `last`."""
        windows = [*self._ten_seconds.sums, last]
        latest = [*self._ten_seconds.since(last.started_at + 1 - LATEST_SECONDS), last]
        return tuple(
            self._judge_queue_wait(windows, latest, now)
            if key.name == QUEUE_WAIT
            else Judged(
                key.name,
                target=getattr(self.targets, key.name),
                value=_MEASURES[key.name](windows),
                num_samples=_NUM_SAMPLES[key.name](windows),
                latest=_MEASURES[key.name](latest),
            )
            for key in fields(self.targets)
        )

    def _judge_queue_wait(self, windows: list[Window], latest: list[Window], now: float) -> Judged:
        target = self.targets.queue_wait_p95_ms
        waiting = self._waiting if now - self._waiting.at < WINDOW_SECONDS else _Waiting(at=now)
        oldest_ms = waiting.oldest_seconds * 1000
        num_samples = _NUM_SAMPLES[QUEUE_WAIT](windows) + waiting.num_late
        if num_samples < MIN_SAMPLES and waiting.oldest_seconds >= WINDOW_SECONDS:
            return Judged(QUEUE_WAIT, target, oldest_ms, MIN_SAMPLES, latest=oldest_ms)
        late = Window(now)
        if waiting.num_late:
            late.queue_wait.add(oldest_ms, waiting.num_late)
        measure = _MEASURES[QUEUE_WAIT]
        return Judged(QUEUE_WAIT, target, measure([*windows, late]), num_samples, measure([*latest, late]))

    def _note_breaches(self, ended: Window) -> None:
        """Remembers the minute in which the ten seconds up to the end of `ended` missed a target."""
        minute = int(ended.started_at - self._origin) // 60
        for judged in self._judge(ended, ended.started_at + 1):
            if judged.share > 1:
                self._minutes_in_breach[judged.name].add(minute)

    def _num_minutes_in_breach(self, name: str, now: float) -> int:
        """Minutes of the last hour in which at least one window missed its target."""
        oldest = int(now - self._origin) // 60 - HOUR_MINUTES
        self._minutes_in_breach[name] = {each for each in self._minutes_in_breach[name] if each > oldest}
        return len(self._minutes_in_breach[name])


Measure = Callable[[Sequence[Window]], float | None]


def _p95(histograms: Sequence[LatencyHistogram]) -> float | None:
    merged = LatencyHistogram()
    for histogram in histograms:
        merged.merge(histogram)
    return merged.quantile(0.95)


def _num_answered(windows: Sequence[Window]) -> int:
    return sum(window.num_refused + window.num_admitted for window in windows)


def _refused_share(windows: Sequence[Window]) -> float | None:
    answered = _num_answered(windows)
    return sum(window.num_refused for window in windows) / answered if answered else None


_MEASURES: dict[str, Measure] = {
    "ttft_p95_ms": lambda windows: _p95([window.ttft for window in windows]),
    "itl_p95_ms": lambda windows: _p95([window.itl for window in windows]),
    QUEUE_WAIT: lambda windows: _p95([window.queue_wait for window in windows]),
    KV_UTILIZATION: lambda windows: max((window.kv_cache_utilization for window in windows), default=None),
    "admission_reject_rate_max": _refused_share,
}
_NUM_SAMPLES: dict[str, Callable[[Sequence[Window]], int]] = {
    "ttft_p95_ms": lambda windows: sum(window.ttft.num_samples for window in windows),
    "itl_p95_ms": lambda windows: sum(window.itl.num_samples for window in windows),
    QUEUE_WAIT: lambda windows: sum(window.queue_wait.num_samples for window in windows),
    KV_UTILIZATION: len,
    "admission_reject_rate_max": _num_answered,
}
