"""What interactive work leaves for offline work. Pure arithmetic over predicted step times.

Offline work may make a step as long as interactive work makes its longer steps by itself: so the tail that
people feel stays as it is, and the gaps below it are filled (after HyGen, which fills up to a latency
budget).
"""

from bisect import bisect_left, insort
from collections import deque

STRETCH = 1.5
TAIL, TAIL_GROWTH = 0.98, 1.1
NUM_STEPS, LEAST_STEPS = 1024, 256
CALM_SECONDS = 5.0  # without interactive work for so long, nobody is there to be slowed


class Slack:
    """Remembers how long the interactive part of recent steps was predicted to take."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=NUM_STEPS)
        self._sorted: list[float] = []
        self._last_interactive_at: float | None = None

    def note(self, interactive_seconds: float, now: float) -> None:
        """A step was planned whose interactive part takes so long; call it for steps that have one."""
        self._last_interactive_at = now
        if len(self._recent) == NUM_STEPS:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(interactive_seconds)
        insort(self._sorted, interactive_seconds)

    def usual_step_seconds(self, now: float) -> float | None:
        """How long a step may be with offline work in it; None when no interactive work has come lately."""
        if self._last_interactive_at is None or now - self._last_interactive_at > CALM_SECONDS:
            return None
        return STRETCH * self._sorted[len(self._sorted) // 2]

    def longest_step_seconds(self) -> float | None:
        """How long interactive prompts may make a step beside offline work."""
        if len(self._sorted) < LEAST_STEPS:
            return None
        return TAIL_GROWTH * self._sorted[int(TAIL * (len(self._sorted) - 1))]


class OfflineFloor:
    """Credit of service that offline work earns while interactive work would take everything.

    Of every charged token it earns a share while it has work, and spends what it is charged itself.
    """

    def __init__(self) -> None:
        self._credit = 0.0

    def earn(self, cost: float, *, most: float) -> None:
        """Adds to the credit, up to `most`: a long wait is no claim to a long burst."""
        self._credit = min(most, self._credit + cost)

    def spend(self, cost: float) -> None:
        """Takes from the credit; service that came out of slack leaves no debt."""
        self._credit = max(0.0, self._credit - cost)

    def is_due(self, cost: float) -> bool:
        """Whether the credit pays for `cost`."""
        return self._credit >= cost
