"""SQL of what operators see of batches, whoever they belong to. It changes nothing and opens no transaction.

Each statement is bounded: a page by an index, one batch's items by their number of at most 50,000.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import RowMapping, Select, null, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.batch import Batch
from gateway.batches.ids import BatchId
from gateway.batches.queries import batch_of
from gateway.batches.status import BatchStatus
from gateway.batches.tables import batch
from gateway.tenants.ids import TenantId
from gateway.tenants.tables import project, tenant

_NOT_LISTED: Final = ("errors", "metadata")  # of any size, and of no use in a list
# When something may be claimed at once, nobody asks when the next try is: only then are all items looked at.
_STANDING: Final = text(
    """
    SELECT num_running, has_claimable, CASE WHEN NOT has_claimable THEN (
        SELECT min(not_before) FROM batch_item WHERE batch_id = :batch AND state = 'pending'
    ) END AS next_try_at
    FROM (
        SELECT (SELECT count(*) FROM batch_item WHERE batch_id = :batch AND state = 'leased') AS num_running,
               EXISTS (SELECT FROM batch_item WHERE batch_id = :batch AND state = 'pending'
                       AND (not_before IS NULL OR not_before <= now())) AS has_claimable
    ) now_of_it
    """
)


@dataclass(frozen=True, kw_only=True)
class OwnedBatch:
    """A batch and whose it is."""

    batch: Batch
    tenant_name: str
    project_name: str
    is_tenant_enabled: bool


@dataclass(frozen=True, kw_only=True)
class ItemsStanding:
    """What goes on in a batch. `next_try_at`: when the first may run, if all that wait must wait for that."""

    num_running: int
    has_claimable: bool
    next_try_at: datetime | None


async def page(
    connection: AsyncConnection,
    *,
    statuses: Collection[BatchStatus] | None,
    tenant_id: TenantId | None,
    limit: int,
    after: BatchId | None,
) -> Sequence[OwnedBatch]:
    """At most `limit` batches of a tenant, or of everybody, newest first; those behind the batch `after`.

    In one of these states, or in any. What is wrong with their lines is left out.
    """
    found = _owned().order_by(batch.c.created_at.desc(), batch.c.id.desc()).limit(limit)
    if statuses is not None:
        found = found.where(batch.c.status.in_(sorted(statuses)))
    if tenant_id is not None:
        found = found.where(batch.c.tenant_id == tenant_id)
    if after is not None:
        last = batch.alias()
        place = select(last.c.created_at, last.c.id).where(last.c.id == after).scalar_subquery()
        found = found.where(tuple_(batch.c.created_at, batch.c.id) < place)
    rows = await connection.execute(found)
    return [_owned_batch(row) for row in rows.mappings()]


async def find(
    connection: AsyncConnection, batch_id: BatchId, *, for_update: bool = False
) -> OwnedBatch | None:
    """One batch, with what is wrong with its lines. For update: nothing else becomes of it meanwhile."""
    found = _owned(is_whole=True).where(batch.c.id == batch_id)
    rows = await connection.execute(found.with_for_update(of=batch, key_share=True) if for_update else found)
    row = rows.mappings().one_or_none()
    return None if row is None else _owned_batch(row)


async def standing_of_items(connection: AsyncConnection, batch_id: BatchId) -> ItemsStanding:
    """What a batch's items do now."""
    row = (await connection.execute(_STANDING, {"batch": batch_id})).one()
    return ItemsStanding(
        num_running=row.num_running, has_claimable=row.has_claimable, next_try_at=row.next_try_at
    )


def _owned(*, is_whole: bool = False) -> Select[tuple[object, ...]]:
    columns = [
        column if is_whole or column.name not in _NOT_LISTED else null().label(column.name)
        for column in batch.c
    ]
    return (
        select(
            *columns,
            tenant.c.name.label("tenant_name"),
            project.c.name.label("project_name"),
            tenant.c.disabled_at.is_(None).label("is_tenant_enabled"),
        )
        .join(tenant, tenant.c.id == batch.c.tenant_id)
        .join(project, project.c.id == batch.c.project_id)
    )


def _owned_batch(row: RowMapping) -> OwnedBatch:
    return OwnedBatch(
        batch=batch_of(row),
        tenant_name=row["tenant_name"],
        project_name=row["project_name"],
        is_tenant_enabled=row["is_tenant_enabled"],
    )
