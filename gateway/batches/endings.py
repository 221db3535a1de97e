"""SQL of how batches come to their end: leases of the dead, closed windows, cancelled work. It opens no
transaction.

Each function that changes batches wants a transaction of its own, since it locks them in the order of their
ids. Items are locked after their batches; one that somebody else holds is passed over, for a later turn.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.ids import BatchId
from gateway.tenants.ids import KeyId, TenantId

_LEASING: Final = text("SELECT DISTINCT lease_epoch FROM batch_item WHERE state = 'leased'")
_LOCK_BATCHES_OF_LOST: Final = text(
    """
    SELECT id FROM batch
    WHERE id IN (SELECT batch_id FROM batch_item WHERE state = 'leased' AND lease_epoch = ANY(:epochs))
    ORDER BY id LIMIT :most FOR NO KEY UPDATE
    """
)
_LOCK_LOST: Final = text(
    """
    SELECT batch_id, line, tenant_id, custom_id, attempt FROM batch_item
    WHERE state = 'leased' AND lease_epoch = ANY(:epochs) AND batch_id = ANY(:batches)
    ORDER BY batch_id, line LIMIT :most FOR UPDATE SKIP LOCKED
    """
)
_PUT_BACK: Final = text(
    """
    UPDATE batch_item i
    SET state = 'pending', lease_epoch = NULL,
        not_before = CASE WHEN back.pause > 0 THEN now() + make_interval(secs => back.pause) END
    FROM unnest(CAST(:batches AS text[]), CAST(:lines AS int[]), CAST(:pauses AS float8[]))
        AS back (batch_id, line, pause)
    WHERE i.batch_id = back.batch_id AND i.line = back.line
    """
)
_GIVE_UP: Final = text(
    """
    WITH given AS (
        SELECT * FROM unnest(CAST(:batches AS text[]), CAST(:lines AS int[]), CAST(:bodies AS text[]))
            AS given (batch_id, line, body)
    ), done AS (
        UPDATE batch_item i SET state = 'done', lease_epoch = NULL
        FROM given WHERE i.batch_id = given.batch_id AND i.line = given.line
        RETURNING i.batch_id, i.line, i.tenant_id, given.body
    ), told AS (
        INSERT INTO batch_result (batch_id, line, tenant_id, is_error, body)
        SELECT batch_id, line, tenant_id, true, body FROM done
    )
    UPDATE batch b SET num_failed = b.num_failed + counted.num
    FROM (SELECT batch_id, count(*) AS num FROM done GROUP BY batch_id) counted
    WHERE b.id = counted.batch_id
    """
)


def _change_batches(values: str, which: str) -> TextClause:
    """Changes at most `most` batches, locked in the order of their ids."""
    return text(
        f"""
        WITH found AS MATERIALIZED (
            SELECT id FROM batch WHERE {which} ORDER BY id LIMIT :most FOR NO KEY UPDATE
        )
        UPDATE batch SET {values} FROM found WHERE batch.id = found.id
        """  # noqa: S608 - made of constants
    )


_RUNS: Final = "status IN ('validating', 'in_progress') AND ends_as IS NULL"
_CLOSE_WINDOWS: Final = _change_batches("ends_as = 'expired'", f"{_RUNS} AND expires_at <= now()")
_END_CANCELLED: Final = _change_batches(
    "ends_as = 'cancelled'", "status = 'cancelling' AND ends_as IS DISTINCT FROM 'cancelled'"
)
_CANCEL_OF_KEYS: Final = _change_batches(
    "status = 'cancelling', ends_as = 'cancelled', cancelling_at = now()",
    f"{_RUNS} AND key_id = ANY(:keys)",
)
# Counts move with the items, in one transaction.
_FINALIZE: Final = _change_batches(
    "status = 'finalizing', ends_as = 'completed', finalizing_at = now()",
    "status = 'in_progress' AND ends_as IS NULL AND num_completed + num_failed = num_items",
)
_KEYS: Final = text(f"SELECT DISTINCT key_id FROM batch WHERE {_RUNS}")  # noqa: S608 - made of constants
_LEAVE_UNRUN: Final = text(
    """
    WITH over AS MATERIALIZED (
        SELECT id FROM batch
        WHERE status IN ('in_progress', 'cancelling') AND ends_as IN ('expired', 'cancelled')
    ), found AS MATERIALIZED (
        SELECT batch_id, line FROM over
        CROSS JOIN LATERAL (
            SELECT batch_id, line FROM batch_item
            WHERE batch_id = over.id AND state = 'pending' LIMIT :most FOR UPDATE SKIP LOCKED
        ) item
        LIMIT :most
    )
    UPDATE batch_item i SET state = 'unrun' FROM found
    WHERE i.batch_id = found.batch_id AND i.line = found.line
    """
)


@dataclass(frozen=True, kw_only=True)
class LostItem:
    """An item whose worker is gone; it was claimed `attempt` times."""

    batch: BatchId
    line: int
    tenant: TenantId
    custom_id: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class ItemBack:
    """An item that may be claimed again after a pause."""

    item: LostItem
    pause_seconds: float


@dataclass(frozen=True, kw_only=True)
class ItemGivenUp:
    """An item that is run no more; `body` is its line in the error file."""

    item: LostItem
    body: str


# --- leases -------------------------------------------------------------------------------------------------


async def leasing_epochs(connection: AsyncConnection) -> set[int]:
    """The lives that items are leased to."""
    return set((await connection.execute(_LEASING)).scalars())


async def lock_lost(
    connection: AsyncConnection, epochs: Collection[int], *, most_batches: int, most_items: int
) -> list[LostItem]:
    """Items leased to these lives, which are over, and their batches: nobody else changes them meanwhile."""
    over = sorted(epochs)
    locked = await connection.execute(_LOCK_BATCHES_OF_LOST, {"epochs": over, "most": most_batches})
    batches = list(locked.scalars())
    rows = await connection.execute(_LOCK_LOST, {"epochs": over, "batches": batches, "most": most_items})
    return [
        LostItem(
            batch=BatchId(row.batch_id),
            line=row.line,
            tenant=TenantId(row.tenant_id),
            custom_id=row.custom_id,
            attempt=row.attempt,
        )
        for row in rows
    ]


async def put_back(connection: AsyncConnection, items: Sequence[ItemBack]) -> None:
    """Makes locked items claimable again."""
    await connection.execute(
        _PUT_BACK,
        {
            "batches": [back.item.batch for back in items],
            "lines": [back.item.line for back in items],
            "pauses": [back.pause_seconds for back in items],
        },
    )


async def give_up(connection: AsyncConnection, items: Sequence[ItemGivenUp]) -> None:
    """Gives locked items their one result, an error; their batches are locked too."""
    await connection.execute(
        _GIVE_UP,
        {
            "batches": [given.item.batch for given in items],
            "lines": [given.item.line for given in items],
            "bodies": [given.body for given in items],
        },
    )


# --- towards an end: each says how many it changed, at most `most` ------------------------------------------


async def close_windows(connection: AsyncConnection, *, most: int) -> int:
    """Batches whose time is up end as expired."""
    return (await connection.execute(_CLOSE_WINDOWS, {"most": most})).rowcount


async def end_cancelled(connection: AsyncConnection, *, most: int) -> int:
    """Batches that somebody cancelled end as that, also where they were about to end otherwise."""
    return (await connection.execute(_END_CANCELLED, {"most": most})).rowcount


async def keys_of_running(connection: AsyncConnection) -> list[KeyId]:
    """The keys on whose behalf batches are run or validated."""
    return [KeyId(key) for key in (await connection.execute(_KEYS)).scalars()]


async def cancel_of_keys(connection: AsyncConnection, keys: Collection[KeyId], *, most: int) -> int:
    """What these keys submitted is cancelled; what has all its answers is not."""
    return (await connection.execute(_CANCEL_OF_KEYS, {"keys": sorted(keys), "most": most})).rowcount


async def leave_unrun(connection: AsyncConnection, *, most: int) -> int:
    """What waits in batches that expire or are cancelled is never run."""
    return (await connection.execute(_LEAVE_UNRUN, {"most": most})).rowcount


async def finalize_answered(connection: AsyncConnection, *, most: int) -> int:
    """Batches all of whose items have their result wait for their files."""
    return (await connection.execute(_FINALIZE, {"most": most})).rowcount
