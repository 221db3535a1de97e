"""SQL of how ended batches get their files: lines by pages, and the last state. It opens no transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.ids import BatchId
from gateway.batches.status import BatchStatus, EndsAs
from gateway.batches.tables import batch
from gateway.tenants.ids import ProjectId, TenantId

# The subqueries must not become joins: one look into an index for each batch, however many items wait.
_READY: Final = text(
    """
    SELECT id, tenant_id, project_id, status, ends_as, output_expires_after_seconds FROM batch b
    WHERE (status = 'finalizing'
           OR status IN ('validating', 'in_progress') AND ends_as = 'expired'
           OR status = 'cancelling' AND ends_as = 'cancelled')
      AND id <> ALL(CAST(:but AS text[]))
      AND (SELECT true FROM batch_item WHERE batch_id = b.id AND state = 'pending' LIMIT 1) IS NULL
      AND (SELECT true FROM batch_item WHERE batch_id = b.id AND state = 'leased' LIMIT 1) IS NULL
    ORDER BY created_at, id LIMIT :most
    """
)
_RESULTS: Final = text(
    """
    WITH page AS (
        SELECT line, is_error, body FROM batch_result
        WHERE tenant_id = :tenant AND batch_id = :batch AND line > :after ORDER BY line LIMIT :most
    ), sized AS (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY line) - octet_length(body) AS bytes_before FROM page
    )
    SELECT line, is_error, body FROM sized WHERE bytes_before < :most_bytes ORDER BY line
    """
)
_UNRUN: Final = text(
    """
    SELECT line, custom_id FROM batch_item
    WHERE tenant_id = :tenant AND batch_id = :batch AND line > :after AND state = 'unrun'
    ORDER BY line LIMIT :most
    """
)
# Batches are few and their items many: each of the former is found by one look into the latter's index.
_WITH_REMAINS: Final = text(
    """
    WITH RECURSIVE named AS (
        SELECT min(batch_id) AS id FROM batch_item
        UNION ALL
        SELECT (SELECT min(batch_id) FROM batch_item WHERE batch_id > named.id) FROM named
        WHERE named.id IS NOT NULL
    )
    SELECT batch.id, batch.tenant_id FROM batch JOIN named ON named.id = batch.id
    WHERE batch.status IN ('completed', 'expired', 'cancelled', 'failed')
    """
)


def _forget(table: str) -> str:
    return f"""
        DELETE FROM {table} WHERE tenant_id = :tenant AND batch_id = :batch AND line IN (
            SELECT line FROM {table} WHERE tenant_id = :tenant AND batch_id = :batch LIMIT :most
        )
    """  # noqa: S608 - made of constants


_FORGET_RESULTS: Final = text(_forget("batch_result"))
_FORGET_ITEMS: Final = text(_forget("batch_item"))
_FORGET_BATCHES: Final = text(
    """
    DELETE FROM batch WHERE id IN (
        SELECT id FROM batch
        WHERE status IN ('completed', 'expired', 'cancelled', 'failed')
          AND coalesce(completed_at, expired_at, cancelled_at, failed_at)
              < now() - make_interval(days => :days)
          AND (SELECT true FROM batch_item WHERE batch_id = batch.id LIMIT 1) IS NULL
        LIMIT :most
    )
    """
)
_ENDED_AT: Final = {
    EndsAs.COMPLETED: (BatchStatus.COMPLETED, batch.c.completed_at),
    EndsAs.EXPIRED: (BatchStatus.EXPIRED, batch.c.expired_at),
    EndsAs.CANCELLED: (BatchStatus.CANCELLED, batch.c.cancelled_at),
}


@dataclass(frozen=True, kw_only=True)
class EndedBatch:
    """A batch that nobody runs any more, as it was when its files were begun."""

    id: BatchId
    tenant: TenantId
    project: ProjectId
    status: BatchStatus
    ends_as: EndsAs
    output_expires_after_seconds: int | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The line that an item has in one of the two files."""

    line: int
    is_error: bool
    body: str


@dataclass(frozen=True, kw_only=True)
class UnrunItem:
    """An item that was never run."""

    line: int
    custom_id: str


async def ready(connection: AsyncConnection, *, most: int, but: Collection[BatchId] = ()) -> list[EndedBatch]:
    """Whose files can be written, everybody's, oldest first; none of `but`."""
    rows = await connection.execute(_READY, {"most": most, "but": list(but)})
    return [
        EndedBatch(
            id=BatchId(row.id),
            tenant=TenantId(row.tenant_id),
            project=ProjectId(row.project_id),
            status=BatchStatus(row.status),
            ends_as=EndsAs(row.ends_as),
            output_expires_after_seconds=row.output_expires_after_seconds,
        )
        for row in rows
    ]


async def results(
    connection: AsyncConnection, ended: EndedBatch, *, after: int, most: int, most_bytes: int
) -> list[Result]:
    """The next results behind a line: at most `most`, and no further one beyond `most_bytes`."""
    rows = await connection.execute(
        _RESULTS,
        {
            "tenant": ended.tenant,
            "batch": ended.id,
            "after": after,
            "most": most,
            "most_bytes": most_bytes,
        },
    )
    return [Result(line=line, is_error=is_error, body=body) for line, is_error, body in rows]


async def unrun(connection: AsyncConnection, ended: EndedBatch, *, after: int, most: int) -> list[UnrunItem]:
    """The next items behind a line that were never run."""
    rows = await connection.execute(
        _UNRUN, {"tenant": ended.tenant, "batch": ended.id, "after": after, "most": most}
    )
    return [UnrunItem(line=line, custom_id=custom_id) for line, custom_id in rows]


async def lock_unchanged(connection: AsyncConnection, ended: EndedBatch) -> int | None:
    """The number of its items, if the batch is still as it was; nobody else changes it meanwhile."""
    return await connection.scalar(
        select(batch.c.num_items)
        .where(batch.c.tenant_id == ended.tenant, batch.c.id == ended.id)
        .where(batch.c.status == ended.status.value, batch.c.ends_as == ended.ends_as.value)
        .with_for_update()
    )


async def end(
    connection: AsyncConnection,
    ended: EndedBatch,
    *,
    output_file: str | None,
    error_file: str | None,
    num_completed: int,
    num_failed: int,
) -> None:
    """The batch's last state, with its files and what they count."""
    status, ended_at = _ENDED_AT[ended.ends_as]
    await connection.execute(
        update(batch)
        .where(batch.c.tenant_id == ended.tenant, batch.c.id == ended.id)
        .values(
            {
                batch.c.status: status.value,
                ended_at: func.now(),
                batch.c.output_file_id: output_file,
                batch.c.error_file_id: error_file,
                batch.c.num_completed: num_completed,
                batch.c.num_failed: num_failed,
            }
        )
    )


async def with_remains(connection: AsyncConnection) -> Sequence[tuple[BatchId, TenantId]]:
    """Batches that have ended and still have items: whoever ended them died."""
    rows = await connection.execute(_WITH_REMAINS)
    return [(BatchId(batch_id), TenantId(tenant)) for batch_id, tenant in rows]


async def forget_lines(connection: AsyncConnection, batch_id: BatchId, tenant: TenantId, *, most: int) -> int:
    """Removes some items of an ended batch, after all of its results; how many rows went."""
    which = {"tenant": tenant, "batch": batch_id, "most": most}
    num_results = (await connection.execute(_FORGET_RESULTS, which)).rowcount
    if num_results:
        return num_results
    return (await connection.execute(_FORGET_ITEMS, which)).rowcount


async def forget_batches(connection: AsyncConnection, *, days: int, most: int) -> int:
    """Removes batches that ended so long ago."""
    return (await connection.execute(_FORGET_BATCHES, {"days": days, "most": most})).rowcount
