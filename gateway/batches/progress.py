"""How fast a batch gets on, and when it will be done. Pure."""

from datetime import datetime, timedelta
from math import exp
from typing import Final

FORGETTING_SECONDS: Final = 30.0  # the past counts by e to the power of minus its age over this
LEAST_ITEMS_PER_SECOND: Final = 1e-3  # below it a batch stands still


def items_per_second(before: float | None, *, num_gained: int, elapsed_seconds: float) -> float:
    """The rate of late: the one known before, and what was gained since. `elapsed_seconds` is above 0."""
    now = num_gained / elapsed_seconds
    if before is None:
        return now
    kept = exp(-elapsed_seconds / FORGETTING_SECONDS)
    return kept * before + (1.0 - kept) * now


def done_at(now: datetime, *, num_left: int, rate: float | None, expires_at: datetime) -> datetime | None:
    """When the last item will have its answer, at the latest when the window closes; None: nobody knows."""
    if num_left == 0:
        return now
    if rate is None or rate < LEAST_ITEMS_PER_SECOND:
        return None
    left = timedelta(seconds=num_left / rate)
    return expires_at if left >= expires_at - now else now + left
