"""SQL of batches as such: ordering, finding, listing, cancelling, and taking in what was validated.

How their items are claimed and recorded is elsewhere (`claims.py`, `results.py`).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sqlalchemy import RowMapping, bindparam, func, insert, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches import faults
from gateway.batches.batch import Batch, Order
from gateway.batches.faults import Fault
from gateway.batches.ids import BatchId
from gateway.batches.items import Items
from gateway.batches.status import OPEN, BatchStatus, EndsAs
from gateway.batches.tables import batch
from gateway.idempotency import KEY_LIFE
from gateway.tenants.ids import KeyId, ProjectId, TenantId

ENQUEUED_LOCKS: Final = (
    0x51_0BA7  # first half of the advisory lock under which a tenant's tokens are added up
)
ORDER_LOCKS: Final = 0x51_0DE2  # first half of the advisory lock under which a tenant orders
MOST_DRAWN: Final = 16  # batches that a validator may find taken before it goes away with nothing

# Said in the statement itself, so that every plan of it may use the index of open batches.
_IS_OPEN: Final = batch.c.status.in_(
    bindparam("open_statuses", sorted(OPEN), expanding=True, literal_execute=True)
)

# A validator lives as long as the life of the process that runs it. Of each tenant the oldest batch is next;
# between tenants lots are drawn, so that nobody waits behind all that another has ordered. One pass finds a
# few of those that wait: comparing each with each takes seconds where statistics are old, and one would not
# do, as another process may be about to take it.
_CLAIM: Final = text(
    """
    UPDATE batch SET validator_epoch = :epoch
    WHERE id = (
        SELECT batch.id
        FROM batch JOIN (
            SELECT id, place, validator_epoch FROM (
                SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY created_at, id) AS place
                FROM batch WHERE status = 'validating'
            ) waiting
            WHERE expires_at > now() AND id <> ALL(CAST(:in_hand AS text[]))
              AND tenant_id <> ALL(CAST(:passed_over AS text[]))
              AND (validator_epoch IS NULL OR validator_epoch = :epoch OR NOT EXISTS (
                  SELECT FROM replica r WHERE r.epoch = validator_epoch AND r.fenced_at IS NULL))
            ORDER BY place, random() LIMIT :most
        ) few ON few.id = batch.id
        WHERE batch.status = 'validating' AND batch.validator_epoch IS NOT DISTINCT FROM few.validator_epoch
        ORDER BY few.place LIMIT 1 FOR UPDATE OF batch SKIP LOCKED
    )
    RETURNING *
    """
)
_ADD_ITEMS: Final = text(
    """
    INSERT INTO batch_item
        (batch_id, tenant_id, line, custom_id, first_byte, num_bytes, prompt_tokens, prefix)
    SELECT :batch, :tenant, new.* FROM unnest(
        CAST(:lines AS int[]), CAST(:custom_ids AS text[]), CAST(:first_bytes AS bigint[]),
        CAST(:num_bytes AS int[]), CAST(:prompt_tokens AS int[]), CAST(:prefixes AS bigint[])
    ) AS new
    """
)
# Whoever has had nothing to run for a while begins with the least of those who have: idleness earns nothing.
_JOIN_SHARES: Final = text(
    """
    WITH busy AS (
        SELECT coalesce(min(s.served), 0) AS least FROM batch_share s
        WHERE EXISTS (SELECT FROM batch b WHERE b.tenant_id = s.tenant_id AND b.status = 'in_progress')
    )
    INSERT INTO batch_share (tenant_id, served) SELECT :tenant, least FROM busy
    ON CONFLICT (tenant_id) DO UPDATE SET served = greatest(batch_share.served, excluded.served)
    """
)


# --- for their owners ---------------------------------------------------------------------------------------


async def lock_orders(connection: AsyncConnection, tenant: TenantId) -> None:
    """Until the transaction ends, nobody else orders for the tenant."""
    await connection.execute(select(func.pg_advisory_xact_lock(ORDER_LOCKS, func.hashtext(tenant))))


async def num_open(connection: AsyncConnection, tenant: TenantId) -> int:
    """How many batches of the tenant have not ended."""
    found = await connection.scalar(select(func.count()).where(batch.c.tenant_id == tenant, _IS_OPEN))
    return int(found or 0)


async def add(connection: AsyncConnection, batch_id: BatchId, order: Order) -> Batch:
    """Stores a new batch. The order's idempotency key must have made none."""
    rows = await connection.execute(
        insert(batch)
        .values(
            id=batch_id,
            tenant_id=order.tenant,
            project_id=order.project,
            key_id=order.key,
            endpoint=order.endpoint,
            input_file_id=order.input_file,
            input_blob=order.input_blob,
            completion_window=order.completion_window,
            output_expires_after_seconds=order.output_expires_after_seconds,
            metadata=order.metadata,
            idempotency_key=order.idempotency_key,
            expires_at=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, order.window_seconds),
        )
        .returning(batch)
    )
    return batch_of(rows.mappings().one())


async def forget_old_key(connection: AsyncConnection, tenant: TenantId, project: ProjectId, key: str) -> None:
    """Lets an idempotency key be used again, if it was used long enough ago."""
    await connection.execute(
        update(batch)
        .where(
            batch.c.tenant_id == tenant,
            batch.c.project_id == project,
            batch.c.idempotency_key == key,
            batch.c.created_at < func.now() - KEY_LIFE,
        )
        .values(idempotency_key=None)
    )


async def find_by_key(
    connection: AsyncConnection, tenant: TenantId, project: ProjectId, key: str
) -> Batch | None:
    """The batch that was ordered under an idempotency key."""
    rows = await connection.execute(
        select(batch).where(
            batch.c.tenant_id == tenant,
            batch.c.project_id == project,
            batch.c.idempotency_key == key,
        )
    )
    row = rows.mappings().one_or_none()
    return None if row is None else batch_of(row)


async def find(
    connection: AsyncConnection, tenant: TenantId, project: ProjectId, batch_id: BatchId
) -> Batch | None:
    """The project's batch of that id."""
    rows = await connection.execute(
        select(batch).where(
            batch.c.tenant_id == tenant, batch.c.project_id == project, batch.c.id == batch_id
        )
    )
    row = rows.mappings().one_or_none()
    return None if row is None else batch_of(row)


async def page(
    connection: AsyncConnection, tenant: TenantId, project: ProjectId, *, limit: int, after: BatchId | None
) -> Sequence[Batch]:
    """At most `limit` batches of a project, newest first; those behind the batch `after`."""
    found = (
        select(batch)
        .where(batch.c.tenant_id == tenant, batch.c.project_id == project)
        .order_by(batch.c.created_at.desc(), batch.c.id.desc())
        .limit(limit)
    )
    if after is not None:
        last = batch.alias()
        place = select(last.c.created_at, last.c.id).where(
            last.c.tenant_id == tenant, last.c.project_id == project, last.c.id == after
        )
        found = found.where(tuple_(batch.c.created_at, batch.c.id) < place.scalar_subquery())
    rows = await connection.execute(found)
    return [batch_of(row) for row in rows.mappings()]


async def cancel(
    connection: AsyncConnection, tenant: TenantId, project: ProjectId, batch_id: BatchId
) -> None:
    """Begins to end a batch that has not ended; the sweep does the rest."""
    may_be_cancelled = OPEN - {BatchStatus.CANCELLING}
    await connection.execute(
        update(batch)
        .where(batch.c.tenant_id == tenant, batch.c.project_id == project, batch.c.id == batch_id)
        .where(batch.c.status.in_(sorted(may_be_cancelled)))
        .values(status=BatchStatus.CANCELLING.value, ends_as=EndsAs.CANCELLED.value, cancelling_at=func.now())
    )


# --- for validators -----------------------------------------------------------------------------------------


async def claim_for_validation(
    connection: AsyncConnection,
    *,
    epoch: int,
    in_hand: Collection[BatchId] = (),
    passed_over: Collection[TenantId] = (),
) -> Batch | None:
    """The oldest batch that no living process validates; from now on, this life does.

    `in_hand` are those that it does already: any other of its own has lost its validator. Of tenants that are
    passed over nothing is claimed.
    """
    values = {
        "epoch": epoch,
        "most": MOST_DRAWN,
        "in_hand": list(in_hand),
        "passed_over": list(passed_over),
    }
    rows = await connection.execute(_CLAIM, values)
    row = rows.mappings().one_or_none()
    return None if row is None else batch_of(row)


async def awaits_validator(
    connection: AsyncConnection,
    tenant: TenantId,
    batch_id: BatchId,
    *,
    epoch: int,
    for_update: bool = False,
) -> bool:
    """Whether the batch waits for the validator of this life; with `for_update`, that stays so."""
    found = select(batch.c.id).where(
        batch.c.tenant_id == tenant,
        batch.c.id == batch_id,
        batch.c.status == BatchStatus.VALIDATING.value,
        batch.c.validator_epoch == epoch,
    )
    rows = await connection.execute(found.with_for_update() if for_update else found)
    return rows.one_or_none() is not None


async def lock_enqueued_tokens(connection: AsyncConnection, tenant: TenantId) -> None:
    """Until the transaction ends, nobody else adds to what the tenant has enqueued."""
    await connection.execute(select(func.pg_advisory_xact_lock(ENQUEUED_LOCKS, func.hashtext(tenant))))


async def enqueued_tokens(
    connection: AsyncConnection,
    tenant: TenantId,
    *,
    project: ProjectId | None = None,
    key: KeyId | None = None,
    model: str | None = None,
) -> int:
    """Prompt tokens of all batches of a tenant that have not ended; None: of all projects, keys or models."""
    which = {batch.c.project_id: project, batch.c.key_id: key, batch.c.model: model}
    total = await connection.scalar(
        select(func.coalesce(func.sum(batch.c.enqueued_tokens), 0))
        .where(batch.c.tenant_id == tenant, _IS_OPEN)
        .where(*(column == wanted for column, wanted in which.items() if wanted is not None))
    )
    return int(total or 0)


async def add_items(connection: AsyncConnection, tenant: TenantId, batch_id: BatchId, items: Items) -> None:
    """Stores some of a batch's items. In columns: rows one by one cost three times as much.

    Not by COPY, which Postgres refuses where row security binds.
    """
    await connection.execute(
        _ADD_ITEMS,
        {
            "batch": batch_id,
            "tenant": tenant,
            "lines": items.lines,
            "custom_ids": items.custom_ids,
            "first_bytes": items.first_bytes,
            "num_bytes": items.num_bytes,
            "prompt_tokens": items.prompt_tokens,
            "prefixes": items.prefixes,
        },
    )


async def begin(
    connection: AsyncConnection,
    tenant: TenantId,
    batch_id: BatchId,
    *,
    model: str,
    num_items: int,
    enqueued_tokens: int,
) -> None:
    """The batch's items may be claimed. Spans tenants: its tenant's share begins where the others' are."""
    await connection.execute(_JOIN_SHARES, {"tenant": tenant})
    await connection.execute(
        update(batch)
        .where(batch.c.tenant_id == tenant, batch.c.id == batch_id)
        .values(
            status=BatchStatus.IN_PROGRESS.value,
            in_progress_at=func.clock_timestamp(),
            model=model,
            num_items=num_items,
            enqueued_tokens=enqueued_tokens,
        )
    )


async def fail(
    connection: AsyncConnection,
    tenant: TenantId,
    batch_id: BatchId,
    found: Iterable[Fault],
) -> None:
    """The batch's file cannot be run, for these reasons."""
    await connection.execute(
        update(batch)
        .where(batch.c.tenant_id == tenant, batch.c.id == batch_id)
        .values(
            status=BatchStatus.FAILED.value,
            failed_at=func.clock_timestamp(),
            errors=faults.stored(found),
        )
    )


def batch_of(row: RowMapping) -> Batch:
    """A row as what it is of."""
    ends_as = row["ends_as"]
    return Batch(
        id=BatchId(row["id"]),
        tenant=TenantId(row["tenant_id"]),
        project=ProjectId(row["project_id"]),
        key=KeyId(row["key_id"]),
        endpoint=row["endpoint"],
        model=row["model"],
        input_file=row["input_file_id"],
        input_blob=row["input_blob"],
        completion_window=row["completion_window"],
        output_expires_after_seconds=row["output_expires_after_seconds"],
        metadata=row["metadata"],
        status=BatchStatus(row["status"]),
        ends_as=None if ends_as is None else EndsAs(ends_as),
        faults=faults.read(row["errors"]),
        output_file=row["output_file_id"],
        error_file=row["error_file_id"],
        **{name: row[name] for name in _AS_STORED},
    )


_AS_STORED: Final = (
    "num_items",
    "num_completed",
    "num_failed",
    "enqueued_tokens",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "items_per_second",
    "created_at",
    "expires_at",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
