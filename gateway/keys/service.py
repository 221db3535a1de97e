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

from sqlalchemy.exc import DBAPIError

from gateway.db import Database
from gateway.errors import InvalidApiKey, StoreUnavailable
from gateway.keys import queries
from gateway.keys.bearer import tenant_key
from gateway.keys.cache import KeyCache, Valid
from gateway.keys.caller import Caller
from gateway.keys.queries import KeyRecord, StoredSecret
from gateway.keys.secret import MAX_CHARACTERS, digest, public_id, redact
from gateway.logs import Trouble
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
        self._look_ups: dict[tuple[bytes, int], asyncio.Task[Valid | InvalidApiKey]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._changes_until: datetime | None = None  # store's clock
        self._heard: frozenset[tuple[KeyId, datetime]] = frozenset()  # polls overlap
        self._polled_at = time.monotonic()
        self._trouble = Trouble(logger, "changes of keys are not seen")

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
        value = tenant_key(authorization)
        if len(value) > MAX_CHARACTERS:  # not hashed: whoever sends it would decide how long that takes
            raise _incorrect(value)
        presented = digest(value, pepper=self._pepper)
        now = time.monotonic()
        known = self._cache.valid(presented)
        if known is not None and now - self._polled_at < MAX_UNSEEN_SECONDS:
            return self._admit(known, value, now=now)
        return await self._ask_store(value, presented, now=now)

    def _admit(self, known: Valid, value: str, *, now: float) -> Caller:
        if known.expires_at is not None and now >= known.expires_at:
            raise _expired(value)
        self._used.add(known.caller.key)
        return known.caller

    async def _ask_store(self, value: str, presented: bytes, *, now: float) -> Caller:
        key = public_id(value)
        if key is None:
            raise _incorrect(value)
        refused = self._cache.refused(presented, now=now)
        if refused is not None:
            raise InvalidApiKey(refused.reason)
        entry = await asyncio.shield(self._looked_up(key, value, presented, now=now))
        if isinstance(entry, InvalidApiKey):
            raise InvalidApiKey(entry.message)
        return self._admit(entry, value, now=now)

    def _looked_up(
        self, key: KeyId, value: str, presented: bytes, *, now: float
    ) -> asyncio.Task[Valid | InvalidApiKey]:
        """One statement for all who present the key meanwhile: a change makes everybody ask at once."""
        asked = (presented, self._cache.version)
        if asked not in self._look_ups:
            task = asyncio.create_task(self._look_up(key, value, presented, now=now))
            self._look_ups[asked] = task
            task.add_done_callback(lambda _: self._look_ups.pop(asked))
        return self._look_ups[asked]

    async def _look_up(
        self, key: KeyId, value: str, presented: bytes, *, now: float
    ) -> Valid | InvalidApiKey:
        version = self._cache.version
        record = await self._record(key)
        entry = _judge(record, value, presented, now=now)
        if isinstance(entry, InvalidApiKey):
            self._cache.add_refused(presented, reason=entry.message, now=now, version=version)
        else:
            self._cache.add_valid(presented, entry, version=version)
        return entry

    async def _record(self, key: KeyId) -> KeyRecord | None:
        try:
            async with self._database.system_transaction() as connection:
                return await queries.record(connection, key)
        except DBAPIError as error:  # the store is there and refuses: that is not the key's fault
            logger.exception("keys cannot be looked up")
            raise StoreUnavailable("The API key could not be checked right now.") from error

    async def _poll_for_ever(self) -> None:
        while True:
            try:
                await self._poll()
            except Exception as error:  # following changes must not end because one poll did
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
            else:
                self._trouble.end()
            await asyncio.sleep(POLL_SECONDS)

    async def _poll(self) -> None:
        async with self._database.system_transaction() as connection:
            changes = await queries.changes_since(
                connection, self._changes_until, overlap_seconds=OVERLAP_SECONDS
            )
        self._polled_at = time.monotonic()
        self._changes_until = changes.now
        self._cache.forget({key for key, _ in changes.keys - self._heard})
        self._heard = changes.keys
        if self._used:
            await self._mark_used()

    async def _mark_used(self) -> None:
        used = frozenset(self._used)
        async with self._database.system_transaction() as connection:
            await queries.mark_used(connection, used)
        self._used -= used


def _judge(record: KeyRecord | None, value: str, presented: bytes, *, now: float) -> Valid | InvalidApiKey:
    """What the store's answer means. Only who holds a whole secret learns what became of it."""
    secret = None if record is None else _secret_of(record, presented)
    if record is None or secret is None:
        return _incorrect(value)
    if record.revoked:
        return InvalidApiKey(f"The API key {redact(value)} has been revoked.")
    expires_in = secret.expires_in_seconds
    if expires_in is not None and expires_in <= 0:
        return _expired(value)
    if record.tenant_disabled:
        return InvalidApiKey(f"The organization of the API key {redact(value)} is disabled.")
    return Valid(caller=caller_of(record), expires_at=None if expires_in is None else now + expires_in)


def _secret_of(record: KeyRecord, presented: bytes) -> StoredSecret | None:
    """The one of the key's secrets that was presented."""
    found = (secret for secret in record.secrets if hmac.compare_digest(secret.digest, presented))
    return next(found, None)


def _expired(value: str) -> InvalidApiKey:
    return InvalidApiKey(f"The API key {redact(value)} has expired.")


def _incorrect(value: str) -> InvalidApiKey:
    return InvalidApiKey(f"Incorrect API key provided: {redact(value)}.")


def caller_of(record: KeyRecord) -> Caller:
    """Whom a key speaks for, whatever its secret and its state."""
    return Caller(
        tenant=record.tenant,
        tenant_name=record.tenant_name,
        project=record.project,
        project_name=record.project_name,
        key=record.id,
        weight=record.weight,
        project_weight=record.project_weight,
        key_weight=record.key_weight,
        scopes=record.scopes,
        models=record.models,
        cache_group=record.cache_group,
    )
