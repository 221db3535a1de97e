"""All SQL that writes the ledger, and the one that reads single events back.

A request is counted once, by whoever reports it first. The one exception: what was recorded as lost yields to
the truth, or to a report that knows of more; so the order in which reports come does not matter.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, Table, desc, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestClass, Usage
from gateway.tenants.ids import KeyId, ProjectId, TenantId
from gateway.tenants.tables import tenant
from gateway.usage.outcome import Outcome
from gateway.usage.tables import usage_event

_WHO: Final = "tenant_id, project_id, key_id, model, request_class"
_COUNTS: Final = "prompt_tokens, cached_tokens, completion_tokens"
_EVENT: Final = f"request_id, {_WHO}, {_COUNTS}, outcome, admitted_at"
_REPORTED: Final = f"""unnest(
        CAST(:request_ids AS text[]), CAST(:tenants AS text[]), CAST(:projects AS text[]),
        CAST(:keys AS text[]), CAST(:models AS text[]), CAST(:classes AS text[]),
        CAST(:prompt_tokens AS bigint[]), CAST(:cached_tokens AS bigint[]),
        CAST(:completion_tokens AS bigint[]), CAST(:outcomes AS text[]), CAST(:admitted_at AS timestamptz[])
    ) AS reported ({_EVENT})"""

_ADD: Final = text(
    f"""
    INSERT INTO usage_event ({_EVENT}) SELECT * FROM {_REPORTED}
    ON CONFLICT (request_id, admitted_at) DO NOTHING
    RETURNING request_id
    """  # noqa: S608 - made of constants
)

# A statement of its own: the one above has waited for whoever was adding the same events, this one sees them.
_CORRECT: Final = text(
    f"""
    WITH truth AS (
        SELECT * FROM {_REPORTED}
    ), lost AS (
        SELECT request_id, admitted_at, known.prompt_tokens, known.cached_tokens, known.completion_tokens
        FROM usage_event AS known JOIN truth USING (request_id, admitted_at)
        WHERE known.outcome = 'lost' AND (
            truth.outcome <> 'lost'
            OR truth.prompt_tokens + truth.completion_tokens > known.prompt_tokens + known.completion_tokens
        )
        ORDER BY request_id
        FOR UPDATE OF known
    )
    UPDATE usage_event AS known SET
        prompt_tokens = truth.prompt_tokens, cached_tokens = truth.cached_tokens,
        completion_tokens = truth.completion_tokens, outcome = truth.outcome, settled_at = now()
    FROM lost JOIN truth USING (request_id, admitted_at)
    WHERE known.request_id = lost.request_id AND known.admitted_at = lost.admitted_at
    RETURNING known.request_id,
        known.prompt_tokens - lost.prompt_tokens AS prompt_tokens,
        known.cached_tokens - lost.cached_tokens AS cached_tokens,
        known.completion_tokens - lost.completion_tokens AS completion_tokens
    """  # noqa: S608 - made of constants
)


def _into_buckets_of(unit: str) -> str:
    """Adds `moved` to the sums per `unit`, in the order of their keys: replicas may wait, never deadlock."""
    return f"""
        INSERT INTO usage_rollup_{unit} AS known (bucket_start, {_WHO}, num_requests, {_COUNTS})
        SELECT date_trunc('{unit}', admitted_at, 'UTC'), {_WHO},
               sum(num_requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens)
        FROM moved GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
        ON CONFLICT (bucket_start, {_WHO}) DO UPDATE SET
            num_requests = known.num_requests + excluded.num_requests,
            prompt_tokens = known.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = known.cached_tokens + excluded.cached_tokens,
            completion_tokens = known.completion_tokens + excluded.completion_tokens
        """  # noqa: S608 - made of constants


_SUM_UP: Final = text(
    f"""
    WITH moved AS (
        SELECT *, CASE WHEN request_id = ANY(:added) THEN 1 ELSE 0 END AS num_requests FROM {_REPORTED}
    ), minutes AS ({_into_buckets_of("minute")})
    {_into_buckets_of("day")}
    """  # noqa: S608 - made of constants
)


@dataclass(frozen=True, kw_only=True)
class UsageEvent:
    """One admitted request, as it ended. All who report it give the same `admitted_at`, to the digit."""

    request_id: str
    tenant: TenantId
    project: ProjectId
    key: KeyId
    model: str
    request_class: RequestClass
    usage: Usage
    outcome: Outcome
    admitted_at: datetime


async def record(connection: AsyncConnection, events: Iterable[UsageEvent]) -> dict[str, int]:
    """Adds the events whose request has none yet and sums them up, in the caller's transaction.

    Returns, by request id, how many tokens (prompt and completion) each counts that were not counted before.
    A request that is absent was known; 0 is one that used nothing; for one that was lost it is the difference
    to what was known. Whoever moves credit by exactly this in the same transaction charges nothing twice.
    """
    reported = _one_each(events)
    if not reported:
        return {}
    added = set((await connection.execute(_ADD, _columns(reported.values()))).scalars())
    moves = {request_id: reported[request_id].usage for request_id in added}
    known = [event for event in reported.values() if event.request_id not in added]
    if known:
        rows = await connection.execute(_CORRECT, _columns(known))
        moves |= {request_id: Usage(*difference) for request_id, *difference in rows}
    if moves:
        moved = [replace(reported[request_id], usage=usage) for request_id, usage in moves.items()]
        await connection.execute(_SUM_UP, {**_columns(moved), "added": list(added)})
    return {request_id: usage.prompt_tokens + usage.completion_tokens for request_id, usage in moves.items()}


def _one_each(events: Iterable[UsageEvent]) -> dict[str, UsageEvent]:
    """By request, in the order of their ids; of several reports the one that the ledger would end up with."""
    chosen: dict[str, UsageEvent] = {}
    for event in events:
        known = chosen.setdefault(event.request_id, event)
        if _rank(event) > _rank(known):
            chosen[event.request_id] = event
    return dict(sorted(chosen.items()))


def _rank(event: UsageEvent) -> tuple[bool, int]:
    if event.outcome is not Outcome.LOST:
        return True, 0
    return False, event.usage.prompt_tokens + event.usage.completion_tokens


def _columns(events: Collection[UsageEvent]) -> dict[str, list[Any]]:
    return {
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
    }


# --- keeping it in shape -----------------------------------------------------------------------------------


async def make_partitions(connection: AsyncConnection, *, days_ahead: int) -> None:
    """Makes what is missing for today and that many days; does nothing while somebody else is at it."""
    await connection.execute(text("SELECT usage_make_partitions(:days)"), {"days": days_ahead})


async def drop_old(connection: AsyncConnection, table: Table, *, keep_days: int) -> None:
    """Drops the partitions that hold only what is older; does nothing while somebody else is at it."""
    await connection.execute(
        text("SELECT usage_drop_partitions(:table, :days)"), {"table": table.name, "days": keep_days}
    )


# --- reading -----------------------------------------------------------------------------------------------


async def latest_served(connection: AsyncConnection, *, most: int) -> Sequence[Row[Any]]:
    """The `most` latest requests of all tenants (for operators only) that an engine worked on, latest first.

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
