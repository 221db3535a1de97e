"""What was measured, second by second, and its sum over a span that slides. Knows no targets and no clock."""

from collections import deque
from dataclasses import dataclass, field

from engine.core.histogram import LatencyHistogram

_ROUNDING_SECONDS = 0.001  # sums of seconds are not exact


@dataclass
class Window:
    """What was measured from `started_at` on: during one second, or merged over several."""

    started_at: float
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    itl: LatencyHistogram = field(default_factory=LatencyHistogram)
    queue_wait: LatencyHistogram = field(default_factory=LatencyHistogram)
    kv_cache_utilization: float = 0.0  # the highest seen
    num_admitted: int = 0
    num_refused: int = 0

    def merge(self, other: "Window") -> None:
        """Adds all that another window measured."""
        self.ttft.merge(other.ttft)
        self.itl.merge(other.itl)
        self.queue_wait.merge(other.queue_wait)
        self.kv_cache_utilization = max(self.kv_cache_utilization, other.kv_cache_utilization)
        self.num_admitted += other.num_admitted
        self.num_refused += other.num_refused

    def unmerge(self, other: "Window") -> None:
        """Takes out again what was merged in, but for the highest utilisation, which nobody can take out."""
        self.ttft.unmerge(other.ttft)
        self.itl.unmerge(other.itl)
        self.queue_wait.unmerge(other.queue_wait)
        self.num_admitted -= other.num_admitted
        self.num_refused -= other.num_refused


class SlidingSum:
    """The latest parts of equal length, up to the second that runs, and their sum.

    The sum is kept up as parts end and leave, so nothing ever merges 10 or 300 windows.
    """

    def __init__(self, *, part_seconds: float, span_seconds: float, now: float) -> None:
        self._part_seconds, self._span_seconds = part_seconds, span_seconds
        self._parts: deque[Window] = deque()
        self._sum = Window(now)
        self._part = Window(now)  # the one that grows, of seconds that have ended

    @property
    def sums(self) -> list[Window]:
        """All that was measured within the span, before the second that runs."""
        return [self._sum, self._part]

    def since(self, started_at: float) -> list[Window]:
        """The parts from `started_at` on."""
        return [part for part in self._parts if part.started_at >= started_at - _ROUNDING_SECONDS]

    def slide(self, ended: Window, now: float) -> None:
        """Takes in a second that has ended; `now` is when the next one began."""
        self._part.merge(ended)
        num_parts = int((now - self._part.started_at + _ROUNDING_SECONDS) / self._part_seconds)
        if num_parts >= 1:
            self._parts.append(self._part)
            self._sum.merge(self._part)
            self._part = Window(self._part.started_at + num_parts * self._part_seconds)
            self._forget(before=now + 1 - self._span_seconds)

    def _forget(self, before: float) -> None:
        while self._parts and self._parts[0].started_at < before - _ROUNDING_SECONDS:
            self._sum.unmerge(self._parts.popleft())
        self._sum.kv_cache_utilization = max((part.kv_cache_utilization for part in self._parts), default=0.0)
