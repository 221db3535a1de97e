"""A leader's sweep over an unremarkable store of files, and what came out of it."""

import json
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry

from gateway.batch_finishing import BatchFinishing
from gateway.batch_sweep import BatchSweep
from gateway.db import Database
from gateway.files.absent_store import AbsentFileStore
from gateway.files.store import FileStore
from gateway.filing import Filing
from gateway.metrics import GatewayMetrics
from gateway.rhythm import Rhythm
from gateway.settings import FilesSection


def sweep_of(
    database: Database, store: FileStore | None = None, metrics: GatewayMetrics | None = None
) -> BatchSweep:
    """Without a store, nothing comes out of it."""
    return BatchSweep(
        database,
        Filing(database, store or AbsentFileStore(), FilesSection()),
        metrics or GatewayMetrics(CollectorRegistry()),
        keep_days=30,
        keep_files_days=30,
    )


async def sweep_once(database: Database, store: FileStore) -> None:
    """All that is over ends, and what has ended gets its files."""
    await sweep_of(database).end_what_is_over(Rhythm())
    await BatchFinishing(database, store).turn(Rhythm())


def result_lines(url: str, *, is_error: bool) -> list[dict[str, Any]]:
    """Results that are not in files yet, as lines of those, in the order of items."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT body FROM batch_result WHERE is_error = %s ORDER BY batch_id, line", (is_error,)
        )
        return [json.loads(body) for (body,) in found]
