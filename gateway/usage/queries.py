"""All SQL of the ledger. Rows are written once; only one that was given up as lost yields to the truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, desc, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestClass, Usage
from gateway.tenants.ids import KeyId, ProjectId, TenantId
from gateway.tenants.tables import tenant
from gateway.usage.outcome import Outcome
from gateway.usage.tables import usage_event

_RECORD: Final = text(
    """
    INSERT INTO usage_event AS known
        (request_id, tenant_id, project_id, key_id, model, request_class,
         prompt_tokens, cached_tokens, completion_tokens, outcome, admitted_at)
    SELECT * FROM unnest(
        CAST(:request_ids AS text[]), CAST(:tenants AS text[]), CAST(:projects AS text[]),
        CAST(:keys AS text[]), CAST(:models AS text[]), CAST(:classes AS text[]),
        CAST(:prompt_tokens AS int[]), CAST(:cached_tokens AS int[]), CAST(:completion_tokens AS int[]),
        CAST(:outcomes AS text[]), CAST(:admitted_at AS timestamptz[])
    )
    ON CONFLICT (request_id) DO UPDATE SET
        prompt_tokens = excluded.prompt_tokens, cached_tokens = excluded.cached_tokens,
        completion_tokens = excluded.completion_tokens, outcome = excluded.outcome, settled_at = now()
    WHERE known.outcome = 'lost'
    RETURNING request_id, prompt_tokens + completion_tokens AS tokens
    """
)


@dataclass(frozen=True, kw_only=True)
class UsageEvent:
    """One admitted request, as it ended."""

    request_id: str
    tenant: TenantId
    project: ProjectId
    key: KeyId
    model: str
    request_class: RequestClass
    usage: Usage
    outcome: Outcome
    admitted_at: datetime


async def record(connection: AsyncConnection, events: Sequence[UsageEvent]) -> dict[str, int]:
    """Adds the events whose request has none yet. How many tokens each of those counts, by request."""
    added = await connection.execute(
        _RECORD,
        {
            "request_ids": [event.request_id for event in events],
            "tenants": [event.tenant for event in events],
            "projects": [event.project for event in events],
            "keys": [event.key for event in events],
            "models": [event.model for event in events],
            "classes": [event.request_class.value for event in events],
            "prompt_tokens": [event.usage.prompt_tokens for event in events],
            "cached_tokens": [event.usage.cached_tokens for event in events],
            "completion_tokens": [event.usage.completion_tokens for event in events],
            "outcomes": [event.outcome.value for event in events],
            "admitted_at": [event.admitted_at for event in events],
        },
    )
    return {row.request_id: row.tokens for row in added}


async def latest_served(connection: AsyncConnection, *, most: int) -> Sequence[Row[Any]]:
    """The `most` latest requests of all tenants that an engine worked on, latest first.

    Rows of admitted_at, tenant_name, prompt_tokens, cached_tokens, completion_tokens, outcome, request_class:
    for operators who draw a load from what was.
    """
    served = (Outcome.FINISHED, Outcome.CANCELLED, Outcome.DEADLINE)
    query = (
        select(usage_event, tenant.c.name.label("tenant_name"))
        .join(tenant, tenant.c.id == usage_event.c.tenant_id)
        .where(usage_event.c.outcome.in_([outcome.value for outcome in served]))
        .order_by(desc(usage_event.c.admitted_at))
        .limit(most)
    )
    return (await connection.execute(query)).all()
