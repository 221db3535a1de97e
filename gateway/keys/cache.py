"""Remembers what the store said of presented keys. It never asks the store and never decides.

Entries are found by the digest of the whole key, never by a part of it. Bounded: the oldest entry yields.
"""

from dataclasses import dataclass
from typing import Final

from gateway.keys.caller import Caller
from gateway.tenants.ids import KeyId

MAX_VALID: Final = 100_000
MAX_REFUSED: Final = 10_000
REFUSED_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Valid:
    """The store knew this key. `expires_at` is on the monotonic clock; None: it never does."""

    caller: Caller
    expires_at: float | None


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The store did not know this key, or no longer lets it in. `until` is on the monotonic clock."""

    reason: str
    until: float


class KeyCache:
    """Filled only with answers of the store; emptied of whatever the store says has changed."""

    def __init__(self) -> None:
        self._valid: dict[bytes, Valid] = {}
        self._digests: dict[KeyId, bytes] = {}
        self._refused: dict[bytes, Refused] = {}

    def valid(self, digest: bytes) -> Valid | None:
        """What lets this key in, if anything; expiry is for the caller to check."""
        return self._valid.get(digest)

    def refused(self, digest: bytes, *, now: float) -> Refused | None:
        """What keeps this key out, if it was asked for a moment ago."""
        known = self._refused.get(digest)
        return known if known is not None and now < known.until else None

    def add_valid(self, digest: bytes, entry: Valid) -> None:
        """The store let this key in."""
        if len(self._valid) >= MAX_VALID:
            oldest = next(iter(self._valid))
            del self._digests[self._valid.pop(oldest).caller.key]
        self._valid[digest] = entry
        self._digests[entry.caller.key] = digest

    def add_refused(self, digest: bytes, *, reason: str, now: float) -> None:
        """The store did not let this key in."""
        if len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[digest] = Refused(reason=reason, until=now + REFUSED_SECONDS)

    def forget(self, key: KeyId) -> None:
        """The store has changed this key: ask again."""
        digest = self._digests.pop(key, None)
        if digest is not None:
            del self._valid[digest]

    def forget_refusals(self) -> None:
        """Something has changed that may let a refused key in."""
        self._refused.clear()
