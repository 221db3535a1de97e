"""Batches, items and results, put into the store as they are after intake, and while they are run."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import insert, text, update

from gateway.batches.ids import BatchId, new_batch_id, request_id_of
from gateway.batches.output_line import answered
from gateway.batches.status import BatchStatus, EndsAs, ItemState
from gateway.batches.tables import batch, batch_item
from gateway.db import Database
from tests.builders.store import Customer

ENDPOINT: Final = "/v1/chat/completions"
MODEL: Final = "model"
ITEM_BYTES: Final = 100
ITEM_TOKENS: Final = 10

_ADD_ITEMS: Final = text(
    f"""
    INSERT INTO batch_item
        (batch_id, line, tenant_id, custom_id, first_byte, num_bytes, prompt_tokens, prefix)
    SELECT :batch, line, :tenant, 'line-' || line,
           (line - 1) * {ITEM_BYTES}, {ITEM_BYTES - 1}, {ITEM_TOKENS}, 0
    FROM generate_series(1, :num) AS line
    """
)
_ADD_RESULTS: Final = text(
    """
    INSERT INTO batch_result (batch_id, line, tenant_id, is_error, body)
    SELECT :batch, result.line, :tenant, :is_error, result.body
    FROM unnest(CAST(:lines AS int[]), CAST(:bodies AS text[])) AS result (line, body)
    """
)


async def make_batch(
    database: Database,
    customer: Customer,
    *,
    num_items: int = 3,
    status: BatchStatus = BatchStatus.IN_PROGRESS,
    ends_as: EndsAs | None = None,
    expires_in: timedelta = timedelta(hours=24),
    output_expires_after_seconds: int | None = None,
    input_file_id: str = "file-input",
    input_blob: str = "blob-input",
    batch_id: BatchId | None = None,
) -> BatchId:
    """A batch with lines 1..`num_items` that wait, each with the custom id `line-<number>`."""
    made = batch_id or new_batch_id()
    now = datetime.now(UTC)
    row = {
        "id": made,
        "tenant_id": customer.tenant.id,
        "project_id": customer.caller.project,
        "key_id": customer.caller.key,
        "endpoint": ENDPOINT,
        "model": None if status is BatchStatus.VALIDATING else MODEL,
        "input_file_id": input_file_id,
        "input_blob": input_blob,
        "completion_window": "24h",
        "output_expires_after_seconds": output_expires_after_seconds,
        "status": status.value,
        "ends_as": None if ends_as is None else ends_as.value,
        "num_items": num_items,
        "enqueued_tokens": num_items * ITEM_TOKENS,
        "created_at": now,
        "expires_at": now + expires_in,
        "in_progress_at": None if status is BatchStatus.VALIDATING else now,
        "cancelling_at": now if status is BatchStatus.CANCELLING else None,
    }
    async with database.system_transaction() as connection:
        await connection.execute(insert(batch).values(row))
        if num_items:
            await connection.execute(
                _ADD_ITEMS, {"tenant": customer.tenant.id, "batch": made, "num": num_items}
            )
    return made


async def lease(
    database: Database, batch_id: BatchId, lines: Collection[int], *, epoch: int, attempt: int = 1
) -> None:
    """These lines are run by that life of a gateway process."""
    await _set(database, batch_id, lines, state=ItemState.LEASED, lease_epoch=epoch, attempt=attempt)


async def set_state(database: Database, batch_id: BatchId, lines: Collection[int], state: ItemState) -> None:
    """These lines are in that state, and nobody runs them."""
    await _set(database, batch_id, lines, state=state, lease_epoch=None)


async def finish_lines(
    database: Database,
    customer: Customer,
    batch_id: BatchId,
    lines: Sequence[int],
    *,
    status: int = 200,
    body: bytes = b'{"ok":true}',
) -> None:
    """These lines have their result, counted in their batch; one with a status from 400 on has failed."""
    is_error = status >= 400
    results = {
        "batch": batch_id,
        "tenant": customer.tenant.id,
        "is_error": is_error,
        "lines": list(lines),
        "bodies": [_answered(batch_id, line, status, body) for line in lines],
    }
    counted = batch.c.num_failed if is_error else batch.c.num_completed
    async with database.system_transaction() as connection:
        await connection.execute(_ADD_RESULTS, results)
        await connection.execute(
            update(batch).where(batch.c.id == batch_id).values({counted: counted + len(lines)})
        )
    await set_state(database, batch_id, lines, ItemState.DONE)


def custom_id(line: int) -> str:
    """The name that the builders' customers give to a line."""
    return f"line-{line}"


def _answered(batch_id: BatchId, line: int, status: int, body: bytes) -> str:
    request_id = request_id_of(batch_id, line)
    return answered(request_id, custom_id(line), http_request_id=request_id, status=status, body=body)


async def _set(database: Database, batch_id: BatchId, lines: Collection[int], **values: object) -> None:
    async with database.system_transaction() as connection:
        await connection.execute(
            update(batch_item)
            .where(batch_item.c.batch_id == batch_id, batch_item.c.line.in_(list(lines)))
            .values(**values)
        )
