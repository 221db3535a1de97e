"""Which files are read by batches that have not ended: for whoever wants to remove files. SQL alone."""

from collections.abc import Collection
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.ids import BatchId
from gateway.batches.status import OPEN
from gateway.batches.tables import batch

_OPEN: Final = [status.value for status in OPEN]


async def readers_of(connection: AsyncConnection, file_ids: Collection[str]) -> dict[str, BatchId]:
    """A batch that has not ended for each of the files that one reads; the others are absent."""
    rows = await connection.execute(
        select(batch.c.input_file_id, batch.c.id).where(
            batch.c.input_file_id.in_(file_ids), batch.c.status.in_(_OPEN)
        )
    )
    return {file_id: BatchId(batch_id) for file_id, batch_id in rows}
