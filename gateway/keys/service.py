"""Tells who is calling from the Authorization header: no SQL when it is known, one statement when it is not.

A key is refused only when the store said so or its text cannot be one; a store that is away is never the
caller's fault. A poll of recent changes makes a revocation bind within two seconds on every replica.
"""

import asyncio
import hmac
import logging
import time
from datetime import datetime
from typing import Final

from gateway.db import Database
from gateway.errors import InvalidApiKey, StoreUnavailable
from gateway.keys import queries
from gateway.keys.cache import KeyCache, Valid
from gateway.keys.caller import Caller
from gateway.keys.queries import KeyRecord
from gateway.keys.secret import digest, public_id, redact
from gateway.tenants.ids import KeyId

POLL_SECONDS: Final = 1.0
OVERLAP_SECONDS: Final = 20.0  # longer than any transaction may take, so no change commits unseen
MAX_UNSEEN_SECONDS: Final = 600.0  # how long cached keys go on while the store is away

logger = logging.getLogger(__name__)


class KeyService:
    """Checks keys for one process. `pepper` is the server's own secret."""

    def __init__(self, database: Database, pepper: bytes) -> None:
        self._database = database
        self._pepper = pepper
        self._cache = KeyCache()
        self._used: set[KeyId] = set()
        self._polling: asyncio.Task[None] | None = None
        self._changes_until: datetime | None = None  # store's clock
        self._polled_at = time.monotonic()

    async def start(self) -> None:
        """Begins to follow changes. The store may be away."""
        self._polled_at = time.monotonic()
        self._polling = asyncio.create_task(self._poll_for_ever())

    async def stop(self) -> None:
        """Stops following changes."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait({self._polling})

    async def authenticate(self, authorization: str | None) -> Caller:
        """Whose key this is. Raises InvalidApiKey, or StoreUnavailable when it cannot be known."""
        value = _bearer(authorization)
        presented = digest(value, pepper=self._pepper)
        now = time.monotonic()
        known = self._cache.valid(presented)
        if known is not None and now - self._polled_at < MAX_UNSEEN_SECONDS:
            return self._admit(known, value, now=now)
        return await self._ask_store(value, presented, now=now)

    def _admit(self, known: Valid, value: str, *, now: float) -> Caller:
        if known.expires_at is not None and now >= known.expires_at:
            raise InvalidApiKey(f"The API key {redact(value)} has expired.")
        self._used.add(known.caller.key)
        return known.caller

    async def _ask_store(self, value: str, presented: bytes, *, now: float) -> Caller:
        key = public_id(value)
        if key is None:
            raise _incorrect(value)
        refused = self._cache.refused(presented, now=now)
        if refused is not None:
            raise InvalidApiKey(refused.reason)
        async with self._database.transaction() as connection:
            record = await queries.record(connection, key)
        reason = _why_not(record, value, presented)
        if record is None or reason is not None:
            self._cache.add_refused(presented, reason=reason or _incorrect(value).message, now=now)
            raise InvalidApiKey(reason or _incorrect(value).message)
        entry = _entry(record, now=now)
        self._cache.add_valid(presented, entry)
        return self._admit(entry, value, now=now)

    async def _poll_for_ever(self) -> None:
        while True:
            try:
                await self._poll()
            except StoreUnavailable as error:
                logger.warning("key changes not seen: %s", error)
            except Exception:  # following changes must not end because one poll did
                logger.exception("key changes not seen")
            await asyncio.sleep(POLL_SECONDS)

    async def _poll(self) -> None:
        used, self._used = self._used, set()
        async with self._database.transaction() as connection:
            changes = await queries.changes_since(
                connection, self._changes_until, overlap_seconds=OVERLAP_SECONDS
            )
        self._polled_at = time.monotonic()
        self._changes_until = changes.now
        for key in changes.keys:
            self._cache.forget(key)
        if changes.keys:
            self._cache.forget_refusals()
        if used:
            await self._mark_used(used)

    async def _mark_used(self, keys: set[KeyId]) -> None:
        async with self._database.transaction() as connection:
            await queries.mark_used(connection, keys)


def _bearer(authorization: str | None) -> str:
    if authorization is None:
        raise InvalidApiKey(
            "You didn't provide an API key. Send it in a header: Authorization: Bearer YOUR_KEY."
        )
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "bearer" or not value.strip():
        raise InvalidApiKey("The Authorization header must be: Authorization: Bearer YOUR_KEY.")
    return value.strip()


def _why_not(record: KeyRecord | None, value: str, presented: bytes) -> str | None:
    """The reason to refuse. Only who holds the whole key learns what became of it."""
    if record is None or not hmac.compare_digest(record.digest, presented):
        return _incorrect(value).message
    if record.revoked:
        return f"The API key {redact(value)} has been revoked."
    if record.expires_in_seconds is not None and record.expires_in_seconds <= 0:
        return f"The API key {redact(value)} has expired."
    if record.tenant_disabled:
        return f"The organization of the API key {redact(value)} is disabled."
    return None


def _incorrect(value: str) -> InvalidApiKey:
    return InvalidApiKey(f"Incorrect API key provided: {redact(value)}.")


def _entry(record: KeyRecord, *, now: float) -> Valid:
    caller = Caller(
        tenant=record.tenant,
        tenant_name=record.tenant_name,
        project=record.project,
        key=record.id,
        weight=record.weight,
        cache_group=record.cache_group,
    )
    expires_in = record.expires_in_seconds
    return Valid(caller=caller, expires_at=None if expires_in is None else now + expires_in)
