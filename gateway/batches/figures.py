"""SQL of how batches get on: samples of their progress, and how many are open. It opens no transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.ids import BatchId
from gateway.batches.status import BatchStatus

# One that somebody else holds is sampled a moment later.
_LOCK_DUE: Final = text(
    """
    SELECT id, num_completed + num_failed AS num_done, coalesce(sampled_num, 0) AS num_before,
           items_per_second, extract(epoch FROM clock_timestamp() - sampled_at)::float8 AS elapsed_seconds
    FROM batch
    WHERE status = 'in_progress' AND ends_as IS NULL
      AND (sampled_at IS NULL OR sampled_at < now() - make_interval(secs => :every))
    ORDER BY sampled_at NULLS FIRST LIMIT :most FOR NO KEY UPDATE SKIP LOCKED
    """
)
_SAVE: Final = text(
    """
    UPDATE batch SET items_per_second = new.rate, sampled_num = new.num, sampled_at = clock_timestamp()
    FROM unnest(CAST(:batches AS text[]), CAST(:rates AS float8[]), CAST(:nums AS int[]))
        AS new (id, rate, num)
    WHERE batch.id = new.id
    """
)
_OPEN: Final = text(
    """
    SELECT status, count(*) AS num, max(extract(epoch FROM clock_timestamp() - created_at))::float8 AS age
    FROM batch WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling') GROUP BY status
    """
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a batch has done, and had done at its last sample; of its first nothing is known before."""

    batch: BatchId
    num_done: int
    num_before: int
    items_per_second: float | None
    elapsed_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class OpenBatches:
    """How many batches are open, by status, and since when the oldest is."""

    num_by_status: Mapping[BatchStatus, int]
    oldest_age_seconds: float


async def lock_due_samples(connection: AsyncConnection, *, every_seconds: float, most: int) -> list[Sample]:
    """Batches that are run, and whose progress was not looked at for so long."""
    rows = await connection.execute(_LOCK_DUE, {"every": every_seconds, "most": most})
    return [
        Sample(
            batch=BatchId(row.id),
            num_done=row.num_done,
            num_before=row.num_before,
            items_per_second=row.items_per_second,
            elapsed_seconds=row.elapsed_seconds,
        )
        for row in rows
    ]


async def save_rates(
    connection: AsyncConnection, samples: Sequence[Sample], rates: Sequence[float | None]
) -> None:
    """Stores what was sampled, with the rate of each."""
    await connection.execute(
        _SAVE,
        {
            "batches": [sample.batch for sample in samples],
            "rates": list(rates),
            "nums": [sample.num_done for sample in samples],
        },
    )


async def open_batches(connection: AsyncConnection) -> OpenBatches:
    """Everybody's."""
    rows = (await connection.execute(_OPEN)).all()
    return OpenBatches(
        num_by_status={BatchStatus(row.status): row.num for row in rows},
        oldest_age_seconds=max((row.age for row in rows), default=0.0),
    )
