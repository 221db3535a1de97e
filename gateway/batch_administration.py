"""What operators may see of everybody's batches, and the one thing that they may do: end one.

The change and its audit row are one transaction. Raises AdministrationError with a line for the operator, or
StoreUnavailable.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.audit import queries as audit
from gateway.batches import operator_queries, queries
from gateway.batches.batch import Batch
from gateway.batches.ids import BatchId
from gateway.batches.operator_queries import ItemsStanding, OwnedBatch
from gateway.batches.status import TERMINAL, BatchStatus
from gateway.db import Database
from gateway.files import queries as files
from gateway.files.file import StoredFile
from gateway.files.ids import FileId
from gateway.keys import queries as keys
from gateway.keys.key import ApiKey
from gateway.tenants.errors import BadValue, NoSuchThing
from gateway.tenants.lookup import tenant_called


@dataclass(frozen=True, kw_only=True)
class BatchDetail:
    """All there is to see of a batch. A file, or its key, is None once it is not there, or not there yet."""

    owned: OwnedBatch
    items: ItemsStanding
    key: ApiKey | None
    input_file: StoredFile | None
    output_file: StoredFile | None
    error_file: StoredFile | None


async def page_of_batches(
    database: Database,
    *,
    statuses: Collection[BatchStatus] | None = None,
    tenant_name_or_id: str | None = None,
    limit: int,
    after: str | None = None,
) -> Sequence[OwnedBatch]:
    """At most `limit` batches of a tenant, or of everybody, newest first; those behind the batch `after`.

    In one of these states, or in any.
    """
    async with database.system_transaction() as connection:
        last = None if after is None else (await _existing(connection, BatchId(after))).batch.id
        tenant = None if tenant_name_or_id is None else await tenant_called(connection, tenant_name_or_id)
        return await operator_queries.page(
            connection,
            statuses=statuses,
            tenant_id=None if tenant is None else tenant.id,
            limit=limit,
            after=last,
        )


async def get_batch(database: Database, batch_id: BatchId) -> BatchDetail:
    """One batch. Raises NoSuchThing."""
    async with database.system_transaction() as connection:
        owned = await _existing(connection, batch_id)
        batch = owned.batch
        return BatchDetail(
            owned=owned,
            items=await operator_queries.standing_of_items(connection, batch.id),
            key=await keys.find(connection, batch.key),
            input_file=await _file(connection, batch, batch.input_file),
            output_file=await _file(connection, batch, batch.output_file),
            error_file=await _file(connection, batch, batch.error_file),
        )


async def cancel_batch(database: Database, actor: str, batch_id: BatchId) -> None:
    """Begins to end a batch: what runs of it is ended within seconds, and what was done can be fetched.

    One that is being cancelled already leaves no trail. Raises BadValue for one that has ended.
    """
    async with database.system_transaction() as connection:
        batch = (await _existing(connection, batch_id, for_update=True)).batch
        if batch.status in TERMINAL:
            raise BadValue(f"The batch {batch_id} has ended: it is {batch.status.value}.")
        if batch.status is BatchStatus.CANCELLING:
            return
        await queries.cancel(connection, batch.tenant, batch.project, batch.id)
        await audit.record(
            connection,
            actor=actor,
            action="batch.cancelled",
            subject=batch.id,
            before={"tenant": batch.tenant, "status": batch.status.value},
            after={"tenant": batch.tenant, "status": BatchStatus.CANCELLING.value},
        )


async def _existing(
    connection: AsyncConnection, batch_id: BatchId, *, for_update: bool = False
) -> OwnedBatch:
    found = await operator_queries.find(connection, batch_id, for_update=for_update)
    if found is None:
        raise NoSuchThing(f"There is no batch {batch_id!r}.")
    return found


async def _file(connection: AsyncConnection, batch: Batch, file_id: str | None) -> StoredFile | None:
    if file_id is None:
        return None
    return await files.find(connection, batch.tenant, batch.project, FileId(file_id))
