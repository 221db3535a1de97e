"""What tenants do with files, and what is done for them when their time is over.

Spans files, limits and batches. A row is written when its blob is whole, and a blob is removed when its row
is gone: whoever dies in between leaves a blob without a row, which `remove_orphans` takes later.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby, islice
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches import input_files
from gateway.db import Database
from gateway.errors import (
    FileStoreUnavailable,
    InvalidRequest,
    LimitReached,
    NotFound,
    ServerOverloaded,
    StillNeeded,
)
from gateway.files import queries as files
from gateway.files.file import StoredFile
from gateway.files.ids import FileId, new_file_id
from gateway.files.incoming import Caps, Incoming
from gateway.files.purpose import Purpose
from gateway.files.store import FileStore, StoredBlob
from gateway.files.threads import FileThreads
from gateway.idempotency import KEY_LIFE
from gateway.keys.caller import Caller
from gateway.quotas import queries as quotas
from gateway.quotas.storage import StorageCeiling, StorageOwner, storage_ceiling
from gateway.rhythm import Rhythm
from gateway.settings import FilesSection
from gateway.tenants.ids import TenantId

PUT_OFF: Final = timedelta(hours=1)  # a file that expires while a batch reads it
READ_BYTES: Final = 256 * 1024
ROWS_AT_ONCE: Final = 1_000
BLOBS_AT_ONCE: Final = 1_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an upload says of its file. `keep_seconds` None: as long as files are kept."""

    filename: str
    purpose: Purpose
    keep_seconds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Upload:
    """An upload under way. `earlier` is what was stored under the same idempotency key."""

    caller: Caller
    incoming: Incoming
    idempotency_key: str | None
    earlier: StoredFile | None


class Filing:
    """All verbs of files. One per gateway process."""

    def __init__(self, database: Database, store: FileStore, settings: FilesSection) -> None:
        self.store = store
        self.settings = settings
        self._database = database
        self._threads = FileThreads()
        self._uploads: list[TenantId] = []

    def close(self) -> None:
        """Waits for what is being written."""
        self._threads.close()

    # --- in ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def uploading(self, caller: Caller, *, idempotency_key: str | None = None) -> AsyncIterator[Upload]:
        """An upload, which leaves nothing unless it is kept. Raises ServerOverloaded, StoreUnavailable."""
        with self._seat(caller.tenant):
            upload = await self._begin(caller, idempotency_key)
            try:
                yield upload
            finally:
                await upload.incoming.abandon()

    async def keep(self, upload: Upload, wanted: Wanted) -> StoredFile:
        """The file that was uploaded, or the one that was before under the same idempotency key.

        Raises what `Incoming.write` does, InvalidRequest for a key of another file, LimitReached.
        """
        await upload.incoming.flush()
        if upload.earlier is not None:
            return _same(upload.earlier, upload.incoming)
        blob = await upload.incoming.commit()
        try:
            stored = await self._record(upload, wanted, blob)
        except (InvalidRequest, LimitReached):  # anything else may have been recorded: the sweep knows better
            await self._remove_blob(blob)
            raise
        if stored.blob != blob:  # another upload with the same key came first
            await self._remove_blob(blob)
        return stored

    async def _begin(self, caller: Caller, idempotency_key: str | None) -> Upload:
        async with self._database.tenant_transaction(caller.tenant) as connection:
            earlier = await _under_key(connection, caller, idempotency_key)
            ceiling = await self._ceiling(connection, caller)
        caps = Caps(
            max_bytes=self.settings.max_file_bytes,
            max_lines=self.settings.max_lines,
            room=ceiling.room if earlier is None else self.settings.max_file_bytes,
            no_room=ceiling.reached,
        )
        create = partial(self.store.create, caller.tenant) if earlier is None else None
        return Upload(
            caller=caller,
            incoming=Incoming(self._threads, caps, create=create),
            idempotency_key=idempotency_key,
            earlier=earlier,
        )

    async def _record(self, upload: Upload, wanted: Wanted, blob: str) -> StoredFile:
        """The row, within the cap: uploads of a tenant are recorded one after the other."""
        caller, key, now = upload.caller, upload.idempotency_key, datetime.now(UTC)
        keep = timedelta(days=self.settings.keep_days)
        if wanted.keep_seconds is not None:
            keep = timedelta(seconds=wanted.keep_seconds)
        new = StoredFile(
            id=new_file_id(),
            tenant=caller.tenant,
            project=caller.project,
            purpose=wanted.purpose,
            filename=wanted.filename,
            num_bytes=upload.incoming.num_bytes,
            sha256=upload.incoming.sha256,
            blob=blob,
            created_at=now,
            expires_at=now + keep,
        )
        async with self._database.tenant_transaction(caller.tenant) as connection:
            await files.lock_storage(connection, caller.tenant)
            earlier = await _under_key(connection, caller, key)
            if earlier is not None:
                return _same(earlier, upload.incoming)
            (await self._ceiling(connection, caller)).check(new.num_bytes)
            if key is not None:
                await files.free_idempotency_key(
                    connection, caller.tenant, caller.project, key, until=now - KEY_LIFE
                )
            await files.insert(connection, new, idempotency_key=key)
        return new

    async def _ceiling(self, connection: AsyncConnection, caller: Caller) -> StorageCeiling:
        limits = await quotas.limits_of(connection, caller.tenant)
        stored = await files.stored_bytes(connection, caller.tenant)
        return storage_ceiling(
            limits,
            stored,
            StorageOwner(caller.tenant, caller.tenant_name, caller.project, caller.key),
            default=self.settings.max_tenant_bytes,
        )

    @contextmanager
    def _seat(self, tenant: TenantId) -> Iterator[None]:
        """One of the few uploads at once; of one tenant's there are at most half as many."""
        most = self.settings.max_uploads
        if len(self._uploads) >= most or self._uploads.count(tenant) >= most // 2:
            raise ServerOverloaded("Too many files are being uploaded at once; try again.")
        self._uploads.append(tenant)
        try:
            yield
        finally:
            self._uploads.remove(tenant)

    # --- out ---------------------------------------------------------------------------------------------

    async def find(self, caller: Caller, file_id: FileId) -> StoredFile:
        """A file of the caller's project. Raises NotFound, StoreUnavailable."""
        async with self._database.tenant_transaction(caller.tenant) as connection:
            return _there(await files.find(connection, caller.tenant, caller.project, file_id), file_id)

    async def page(
        self, caller: Caller, *, purpose: Purpose | None, limit: int, after: FileId | None, newest_first: bool
    ) -> Sequence[StoredFile]:
        """At most `limit` files of the caller's project, by age; those behind `after`. Raises NotFound."""
        found: list[StoredFile] = []
        async with self._database.tenant_transaction(caller.tenant) as connection:
            last = None
            if after is not None:
                last = _there(await files.find(connection, caller.tenant, caller.project, after), after)
            while len(found) < limit:  # thousands of rows at once would keep the loop from all else
                some = await files.page(
                    connection,
                    caller.tenant,
                    caller.project,
                    purpose=purpose,
                    limit=min(ROWS_AT_ONCE, limit - len(found)),
                    after=last,
                    newest_first=newest_first,
                )
                if not some:
                    break
                found += some
                last = some[-1]
        return found

    async def read(self, stored: StoredFile, *, start: int, num_bytes: int) -> AsyncGenerator[bytes]:
        """Part of what is in a file, in pieces. Raises BlobMissing, FileStoreUnavailable."""
        opened = await self._threads.run(partial(self.store.open, stored.blob, start=start))
        try:
            while num_bytes > 0:
                piece = await self._threads.run(partial(opened.read, min(READ_BYTES, num_bytes)))
                if not piece:
                    return
                num_bytes -= len(piece)
                yield piece
        finally:
            await self._threads.run(opened.close)

    # --- away --------------------------------------------------------------------------------------------

    async def delete(self, caller: Caller, file_id: FileId) -> None:
        """Removes a file of the caller's project. Raises NotFound, StillNeeded, StoreUnavailable."""
        async with self._database.tenant_transaction(caller.tenant) as connection:
            found = await files.find_to_remove(connection, caller.tenant, caller.project, file_id)
            stored = _there(found, file_id)
            readers = await input_files.readers_of(connection, [file_id])
            if file_id in readers:
                raise StillNeeded(f"{file_id} is read by {readers[file_id]}, which has not ended.")
            await files.delete(connection, caller.tenant, caller.project, file_id)
        await self._remove_blob(stored.blob)

    async def delete_expired(self, limit: int = 100) -> int:
        """Removes files whose time is over, everybody's; how many. What a batch reads stays for now."""
        async with self._database.system_transaction() as connection:
            expired = await files.lock_expired(connection, limit=limit)
            needed = await input_files.readers_of(connection, [stored.id for stored in expired])
            over = [stored for stored in expired if stored.id not in needed]
            await files.put_off(connection, [FileId(id_) for id_ in needed], datetime.now(UTC) + PUT_OFF)
            await files.delete_all(connection, [stored.id for stored in over])
        for stored in over:
            await self._remove_blob(stored.blob)
        return len(over)

    async def remove_orphans(self, term: Rhythm) -> int:
        """Removes blobs without a row, if no upload can be that old, until the term is over; how many."""
        blobs, num_removed = self.store.blobs(), 0
        next_page = partial(self._threads.run, lambda: list(islice(blobs, BLOBS_AT_ONCE)))
        while not term.is_over and (page := await next_page()):
            num_removed += await self._remove_all(await self._orphans(page), term)
        return num_removed

    async def _remove_all(self, blobs: Iterable[str], term: Rhythm) -> int:
        num_removed = 0
        for blob in blobs:
            if term.is_over:
                break
            await self._threads.run(partial(self.store.delete, blob))
            num_removed += 1
        return num_removed

    async def _orphans(self, blobs: Iterable[StoredBlob]) -> set[str]:
        before = datetime.now(UTC) - self.settings.left_after
        names = sorted(blob.name for blob in blobs if blob.stored_at < before)
        orphans: set[str] = set()
        for tenant, of_tenant in groupby(names, lambda name: TenantId(name.partition("/")[0])):
            async with self._database.tenant_transaction(tenant) as connection:
                orphans |= await files.unclaimed(connection, tenant, list(of_tenant))
        return orphans

    async def _remove_blob(self, blob: str) -> None:
        """Nothing knows it any more. Where that fails, it is an orphan's turn."""
        try:
            await self._threads.run(partial(self.store.delete, blob))
        except FileStoreUnavailable as error:
            logger.warning("a blob is left behind for now: %s", error)


async def _under_key(connection: AsyncConnection, caller: Caller, key: str | None) -> StoredFile | None:
    if key is None:
        return None
    since = datetime.now(UTC) - KEY_LIFE
    return await files.find_by_idempotency_key(connection, caller.tenant, caller.project, key, since=since)


def _same(earlier: StoredFile, incoming: Incoming) -> StoredFile:
    """The file again. Raises InvalidRequest where the bytes are others."""
    if earlier.sha256 != incoming.sha256:
        raise InvalidRequest(
            f"This Idempotency-Key was used for another file: {earlier.id}.", code="idempotency_key_reused"
        )
    return earlier


def _there(found: StoredFile | None, file_id: FileId) -> StoredFile:
    if found is None:
        raise NotFound(f"No such File object: {file_id}", param="id")
    return found
