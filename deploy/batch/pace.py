"""How fast a batch goes and how long it will take, from what was seen of it. Pure."""

from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 30.0


class Pace:
    """The items done at the moments of the last half minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, num_done: int) -> None:
        """So many are done at this moment (seconds of any clock)."""
        self._seen.append((now, num_done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()

    def items_per_second(self) -> float | None:
        """Of late; None while too little was seen."""
        if len(self._seen) < 2:
            return None
        (began, num_then), (ended, num_now) = self._seen[0], self._seen[-1]
        return (num_now - num_then) / (ended - began) if ended > began else None

    def seconds_left(self, num_left: int) -> float | None:
        """Until so many more are done; None while nobody can tell."""
        rate = self.items_per_second()
        return num_left / rate if rate else None
