"""Reads past requests out of the ledger. Effects only; what they are good for is decided in `resampling`."""

from typing import Final

from sqlalchemy import desc, select

from deploy.bench.resampling import PastRequest
from deploy.failure import Failure
from engine.protocol import RequestClass
from gateway.db import Database
from gateway.tenants.tables import tenant
from gateway.usage.outcome import Outcome
from gateway.usage.tables import usage_event

MOST_ROWS: Final = 50_000
LEAST_ROWS: Final = 2
_SERVED: Final = (Outcome.FINISHED, Outcome.CANCELLED, Outcome.DEADLINE)


async def past_requests(database: Database) -> list[PastRequest]:
    """The latest that were served, in order of time; raises Failure where there are too few."""
    query = (
        select(usage_event, tenant.c.name.label("tenant_name"))
        .join(tenant, tenant.c.id == usage_event.c.tenant_id)
        .where(usage_event.c.outcome.in_([outcome.value for outcome in _SERVED]))
        .order_by(desc(usage_event.c.admitted_at))
        .limit(MOST_ROWS)
    )
    async with database.transaction() as connection:
        rows = (await connection.execute(query)).all()
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
