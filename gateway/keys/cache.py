"""Remembers what the store said of presented keys. It never asks the store and never decides.

Entries are found by the digest of the whole key, never by a part of it; a key that is being rotated has two.
Bounded: the oldest entry yields.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from gateway.keys.caller import Caller
from gateway.tenants.ids import KeyId

MAX_VALID: Final = 100_000
MAX_REFUSED: Final = 10_000
REFUSED_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Valid:
    """The store knew this secret. `expires_at` is on the monotonic clock; None: it never does."""

    caller: Caller
    expires_at: float | None


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The store did not know this key, or no longer lets it in. `until` is on the monotonic clock."""

    reason: str
    until: float


class KeyCache:
    """Filled only with answers of the store; emptied of whatever the store says has changed.

    `version` counts changes. What was asked for under an older one may be out of date and is not kept.
    """

    def __init__(self) -> None:
        self.version = 0
        self._valid: dict[bytes, Valid] = {}
        self._digests: dict[KeyId, set[bytes]] = {}
        self._refused: dict[bytes, Refused] = {}

    def valid(self, digest: bytes) -> Valid | None:
        """What lets this key in, if anything; expiry is for the caller to check."""
        return self._valid.get(digest)

    def refused(self, digest: bytes, *, now: float) -> Refused | None:
        """What keeps this key out, if it was asked for a moment ago."""
        known = self._refused.get(digest)
        return known if known is not None and now < known.until else None

    def add_valid(self, digest: bytes, entry: Valid, *, version: int) -> None:
        """The store let this key in, asked when `version` was the newest."""
        if version != self.version:
            return
        if len(self._valid) >= MAX_VALID:
            self._drop(next(iter(self._valid)))
        self._valid[digest] = entry
        self._digests.setdefault(entry.caller.key, set()).add(digest)

    def add_refused(self, digest: bytes, *, reason: str, now: float, version: int) -> None:
        """The store did not let this key in, asked when `version` was the newest."""
        if version != self.version:
            return
        if len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[digest] = Refused(reason=reason, until=now + REFUSED_SECONDS)

    def forget(self, keys: Collection[KeyId]) -> None:
        """The store has changed these keys, all their secrets: ask again, also for what was refused."""
        if not keys:
            return
        self.version += 1
        self._refused.clear()
        for key in keys:
            for digest in self._digests.pop(key, ()):
                del self._valid[digest]

    def _drop(self, digest: bytes) -> None:
        key = self._valid.pop(digest).caller.key
        self._digests[key].discard(digest)
        if not self._digests[key]:
            del self._digests[key]
