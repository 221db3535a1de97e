"""Gives ended batches their files and their last state.

    both files (gateway/batch_files.py)
    one transaction: the files' rows, and the last state, if the batch is still what it was at the beginning
    its items and results go

Whoever dies before the transaction leaves blobs that no row names, and another begins anew. Of two who do
the same, one finds that the batch has changed, and removes its blobs.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.batch_files import BatchFiles, LeadsNoMore, write_files
from gateway.batches import outputs
from gateway.batches.ids import BatchId
from gateway.batches.outputs import EndedBatch
from gateway.batches.status import EndsAs
from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.files import queries as files
from gateway.files.file import StoredFile
from gateway.files.ids import new_file_id
from gateway.files.line_file import WrittenFile
from gateway.files.purpose import Purpose
from gateway.files.store import FileStore
from gateway.rhythm import Rhythm
from gateway.tenants.ids import TenantId

MOST_BATCHES: Final = 20
FORGOTTEN_AT_ONCE: Final = 5_000


class LinesMissing(Exception):
    """A batch has an item that is in no file: that must not be, so the batch does not end."""


class BatchFinishing:
    """`on_ended` is told of each batch that got its last state here. Its files are kept for `keep_days`."""

    def __init__(
        self,
        database: Database,
        store: FileStore,
        *,
        keep_days: int = 30,
        on_ended: Callable[[EndsAs, BatchFiles], None] = lambda _ends_as, _files: None,
    ) -> None:
        self._database = database
        self._store = store
        self._keep = timedelta(days=keep_days)
        self._on_ended = on_ended
        self._failed: set[BatchId] = set()  # these are passed over until all others have had their turn

    async def turn(self, term: Rhythm) -> None:
        """Finishes what has ended; batches that cannot be finished do not hold up the others."""
        async with self._database.system_transaction() as connection:
            ready = await outputs.ready(connection, most=MOST_BATCHES, but=self._failed)
        if len(ready) < MOST_BATCHES:
            self._failed.clear()
        trouble: Exception | None = None
        for ended in ready:
            try:
                await self._finish(ended, term)
            except LeadsNoMore:
                return
            except Exception as error:  # raised when all have had their turn
                trouble = error
                self._failed.add(ended.id)
        if trouble is not None:
            raise trouble

    async def clear_up(self, term: Rhythm) -> None:
        """Removes the lines of batches whose leader died when it had just ended them."""
        async with self._database.system_transaction() as connection:
            remains = await outputs.with_remains(connection)
        for batch, tenant in remains:
            if not term.is_over:
                await self._forget_lines(batch, tenant)

    async def _finish(self, ended: EndedBatch, term: Rhythm) -> None:
        written = await write_files(self._database, self._store, ended, term)
        try:
            is_ended = await self._end(ended, written)
        except StoreUnavailable:  # it may have taken effect: whether rows name the blobs, nobody knows
            raise
        except Exception:
            await asyncio.to_thread(self._remove, written.blobs)
            raise
        if not is_ended:
            await asyncio.to_thread(self._remove, written.blobs)
            return
        self._on_ended(ended.ends_as, written)
        await self._forget_lines(ended.id, ended.tenant)

    async def _end(self, ended: EndedBatch, written: BatchFiles) -> bool:
        """Whether the batch was still the same, and has its last state now."""
        now = datetime.now(UTC)
        output = self._row(ended, "output", written.output, now)
        errors = self._row(ended, "error", written.errors, now)
        async with self._database.tenant_transaction(ended.tenant) as connection:
            num_items = await outputs.lock_unchanged(connection, ended)
            if num_items is None:
                return False
            if num_items != written.num_lines:
                raise LinesMissing(f"{ended.id} has {num_items} items and {written.num_lines} lines")
            for row in (output, errors):
                if row is not None:
                    await files.insert(connection, row)
            await outputs.end(
                connection,
                ended,
                output_file=None if output is None else output.id,
                error_file=None if errors is None else errors.id,
                num_completed=written.num_completed,
                num_failed=written.num_failed + written.num_unrun,
            )
        return True

    def _row(
        self, ended: EndedBatch, name: str, written: WrittenFile | None, now: datetime
    ) -> StoredFile | None:
        if written is None:
            return None
        seconds = ended.output_expires_after_seconds
        return StoredFile(
            id=new_file_id(),
            tenant=ended.tenant,
            project=ended.project,
            purpose=Purpose.BATCH_OUTPUT,
            filename=f"{ended.id}_{name}.jsonl",
            num_bytes=written.num_bytes,
            sha256=written.sha256,
            blob=written.blob,
            created_at=now,
            expires_at=now + (self._keep if seconds is None else timedelta(seconds=seconds)),
        )

    async def _forget_lines(self, batch: BatchId, tenant: TenantId) -> None:
        """In several transactions: all rows of a large batch at once would take too long for one."""
        num_gone = FORGOTTEN_AT_ONCE
        while num_gone:
            async with self._database.tenant_transaction(tenant) as connection:
                num_gone = await outputs.forget_lines(connection, batch, tenant, most=FORGOTTEN_AT_ONCE)

    def _remove(self, blobs: Iterable[str]) -> None:
        for blob in blobs:
            self._store.delete(blob)
