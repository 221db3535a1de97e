"""Holds a new key's secret between its making and the one page that shows it.

The secret stays in this process's memory for minutes at most: never in a cookie, an address or the store.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SHOWN_WITHIN_SECONDS: Final = 300.0
MAX_HELD: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class _Held:
    secret: str
    until: float


class Reveals:
    """Secrets that wait to be shown, each once, to the operator who made it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[tuple[str, str], _Held] = {}

    def hold(self, *, operator_id: str, key_id: str, secret: str) -> None:
        """Keeps the secret for five minutes."""
        now = self._clock()
        self._held = {place: held for place, held in self._held.items() if held.until > now}
        while len(self._held) >= MAX_HELD:
            self._held.pop(next(iter(self._held)))
        self._held[operator_id, key_id] = _Held(secret=secret, until=now + SHOWN_WITHIN_SECONDS)

    def take(self, *, operator_id: str, key_id: str) -> str | None:
        """The secret, the first time that its maker asks in time; None ever after."""
        held = self._held.pop((operator_id, key_id), None)
        return None if held is None or held.until <= self._clock() else held.secret
