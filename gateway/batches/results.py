"""The SQL that records what became of items, in the transaction that charges for them."""

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import Usage
from gateway.batches.ids import BatchId, LeaseKey

# In the order that every transaction keeps which locks both: batches by id, then items by line.
_LOCK_BATCHES: Final = text(
    "SELECT id FROM batch WHERE id = ANY(CAST(:batches AS text[])) ORDER BY id FOR UPDATE"
)

_RECORD: Final = text(
    """
    WITH reported AS (
        SELECT * FROM json_to_recordset(CAST(:results AS json)) AS reported (
            batch text, line int, attempt int, is_error bool, body text,
            prompt_tokens bigint, cached_tokens bigint, completion_tokens bigint
        )
    ), held AS MATERIALIZED (
        SELECT i.batch_id, i.line, i.attempt, i.tenant_id FROM batch_item i
        JOIN reported r ON r.batch = i.batch_id AND r.line = i.line
        WHERE i.state = 'leased' AND i.lease_epoch = :epoch AND i.attempt = r.attempt
        ORDER BY i.batch_id, i.line FOR UPDATE OF i
    ), done AS (
        UPDATE batch_item i SET state = 'done', lease_epoch = NULL
        FROM held WHERE i.batch_id = held.batch_id AND i.line = held.line
    ), ended AS (
        SELECT held.batch_id, held.tenant_id, r.*
        FROM held JOIN reported r ON r.batch = held.batch_id AND r.line = held.line
            AND r.attempt = held.attempt
    ), kept AS (
        INSERT INTO batch_result (batch_id, line, tenant_id, is_error, body)
        SELECT batch_id, line, tenant_id, is_error, body FROM ended
    ), sums AS (
        SELECT batch_id, count(*) FILTER (WHERE NOT is_error) AS num_completed,
            count(*) FILTER (WHERE is_error) AS num_failed, sum(prompt_tokens) AS prompt_tokens,
            sum(cached_tokens) AS cached_tokens, sum(completion_tokens) AS completion_tokens
        FROM ended GROUP BY batch_id
    ), counted AS (
        UPDATE batch b SET
            num_completed = b.num_completed + sums.num_completed,
            num_failed = b.num_failed + sums.num_failed,
            prompt_tokens = b.prompt_tokens + sums.prompt_tokens,
            cached_tokens = b.cached_tokens + sums.cached_tokens,
            completion_tokens = b.completion_tokens + sums.completion_tokens
        FROM sums WHERE b.id = sums.batch_id
    )
    SELECT batch_id, line, attempt FROM held
    """
)


class ItemResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an item in one attempt: its whole line for the output file, or for that of errors."""

    batch: BatchId
    line: int
    attempt: int
    is_error: bool
    body: str
    usage: Usage

    @property
    def lease(self) -> LeaseKey:
        """Which lease of which item it ends."""
        return self.batch, self.line, self.attempt


async def record(connection: AsyncConnection, results: Sequence[ItemResult], *, epoch: int) -> set[LeaseKey]:
    """Ends items, once each. It returns the leases that this life still had; the others count nowhere."""
    await connection.execute(_LOCK_BATCHES, {"batches": sorted({result.batch for result in results})})
    rows = await connection.execute(
        _RECORD,
        {"results": msgspec.json.encode([_row(result) for result in results]).decode(), "epoch": epoch},
    )
    return {(BatchId(row.batch_id), row.line, row.attempt) for row in rows}


def _row(result: ItemResult) -> dict[str, object]:
    usage = result.usage
    return {
        "batch": result.batch,
        "line": result.line,
        "attempt": result.attempt,
        "is_error": result.is_error,
        "body": result.body,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    }
