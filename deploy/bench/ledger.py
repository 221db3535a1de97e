"""Reads past requests out of the ledger. Effects only; what they are good for is decided in `resampling`."""

from typing import Final

from deploy.bench.resampling import PastRequest
from deploy.failure import Failure
from engine.protocol import RequestClass
from gateway.db import Database
from gateway.usage.outcome import Outcome
from gateway.usage.queries import latest_served

MOST_ROWS: Final = 50_000
LEAST_ROWS: Final = 2


async def past_requests(database: Database) -> list[PastRequest]:
    """The latest that were served, in order of time; raises Failure where there are too few."""
    async with database.system_transaction() as connection:
        rows = await latest_served(connection, most=MOST_ROWS)
    if len(rows) < LEAST_ROWS:
        raise Failure("the ledger has too few requests to draw from; use --scenario until there is usage")
    return [
        PastRequest(
            at_seconds=row.admitted_at.timestamp(),
            tenant_name=row.tenant_name,
            num_prompt_tokens=row.prompt_tokens,
            num_cached_tokens=row.cached_tokens,
            num_output_tokens=row.completion_tokens,
            is_cancelled=row.outcome == Outcome.CANCELLED.value,
            is_offline=row.request_class == RequestClass.OFFLINE.value,
        )
        for row in reversed(rows)
    ]
