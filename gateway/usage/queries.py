"""All SQL that writes the ledger, and the one that reads single events back.

A request is counted once, by whoever reports it first. The one exception: what was recorded as lost or in
doubt yields to who is surer, or is as sure and knows of more; so the order of reports does not matter.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Row, Table, desc, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestClass, Usage
from gateway.tenants.ids import KeyId, ProjectId, StoreId, TenantId
from gateway.tenants.tables import tenant
from gateway.usage.outcome import Outcome
from gateway.usage.tables import store_identity, usage_event

_WHO: Final = "tenant_id, project_id, key_id, model, request_class"
_COUNTS: Final = "prompt_tokens, cached_tokens, completion_tokens"
_EVENT: Final = f"request_id, {_WHO}, {_COUNTS}, outcome, admitted_at"
# One document: an array for each column would cost the process that serves five times as much.
_REPORTED: Final = """json_to_recordset(CAST(:events AS json)) AS reported (
        request_id text, tenant_id text, project_id text, key_id text, model text, request_class text,
        prompt_tokens bigint, cached_tokens bigint, completion_tokens bigint,
        outcome text, admitted_at timestamptz, num_requests int
    )"""

_ADD: Final = text(
    f"""
    INSERT INTO usage_event ({_EVENT}) SELECT {_EVENT} FROM {_REPORTED}
    ON CONFLICT (request_id, admitted_at) DO NOTHING
    RETURNING request_id
    """  # noqa: S608 - made of constants
)


def _certainty_of(row: str) -> str:
    """How sure its reporter was; above 1 nothing yields."""
    return f"CASE {row}.outcome WHEN 'in_doubt' THEN 0 WHEN 'lost' THEN 1 ELSE 2 END"


# A statement of its own: the one above has waited for whoever was adding the same events, this one sees them.
_CORRECT: Final = text(
    f"""
    WITH truth AS (
        SELECT * FROM {_REPORTED}
    ), lost AS (
        SELECT request_id, admitted_at, known.prompt_tokens, known.cached_tokens, known.completion_tokens
        FROM usage_event AS known JOIN truth USING (request_id, admitted_at)
        WHERE known.outcome IN ('in_doubt', 'lost')
          AND ({_certainty_of("truth")}, truth.prompt_tokens + truth.completion_tokens)
            > ({_certainty_of("known")}, known.prompt_tokens + known.completion_tokens)
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
        SELECT * FROM {_REPORTED}
    ), minutes AS ({_into_buckets_of("minute")})
    {_into_buckets_of("day")}
    """  # noqa: S608 - made of constants
)


class UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
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
    """Adds the events whose request has none yet and sums them up; once in the caller's transaction.

    Returns, by request id, how many tokens (prompt and completion) each counts that were not counted before.
    A request that is absent was known; 0 is one that used nothing; for one that was lost or in doubt it is
    the difference to what was known, which may be negative. Whoever moves credit by exactly this in the same
    transaction charges nothing twice.
    """
    reported = _one_each(events)
    added = await _add(connection, reported.values())
    known = [event for event in reported.values() if event.request_id not in added]
    corrected = await _correct(connection, known)
    moved = [_row(reported[request_id], usage, num_requests=1) for request_id, usage in added.items()]
    moved += [_row(reported[request_id], usage, num_requests=0) for request_id, usage in corrected.items()]
    if moved:
        await connection.execute(_SUM_UP, _document(moved))
    return {
        request_id: usage.prompt_tokens + usage.completion_tokens
        for request_id, usage in (added | corrected).items()
    }


async def _add(connection: AsyncConnection, events: Collection[UsageEvent]) -> dict[str, Usage]:
    """What is new, by request."""
    if not events:
        return {}
    added = await connection.execute(_ADD, _document([_row(event, event.usage) for event in events]))
    usage = {event.request_id: event.usage for event in events}
    return {request_id: usage[request_id] for request_id in added.scalars()}


async def _correct(connection: AsyncConnection, events: Collection[UsageEvent]) -> dict[str, Usage]:
    """By how much more is known now of what was lost or in doubt, by request."""
    if not events:
        return {}
    corrected = await connection.execute(_CORRECT, _document([_row(event, event.usage) for event in events]))
    return {request_id: Usage(*difference) for request_id, *difference in corrected}


def _one_each(events: Iterable[UsageEvent]) -> dict[str, UsageEvent]:
    """By request, in the order of their ids; of several reports the one that the ledger would end up with."""
    chosen: dict[str, UsageEvent] = {}
    for event in events:
        known = chosen.setdefault(event.request_id, event)
        if _rank(event) > _rank(known):
            chosen[event.request_id] = event
    return dict(sorted(chosen.items()))


def _rank(event: UsageEvent) -> tuple[int, int]:
    """As the store ranks what it knows; among those who are sure the first is right."""
    certainty = {Outcome.IN_DOUBT: 0, Outcome.LOST: 1}.get(event.outcome, 2)
    return certainty, event.usage.prompt_tokens + event.usage.completion_tokens if certainty < 2 else 0


def _row(event: UsageEvent, usage: Usage, *, num_requests: int = 1) -> dict[str, Any]:
    return {
        "request_id": event.request_id,
        "tenant_id": event.tenant,
        "project_id": event.project,
        "key_id": event.key,
        "model": event.model,
        "request_class": event.request_class,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "outcome": event.outcome,
        "admitted_at": event.admitted_at,
        "num_requests": num_requests,
    }


def _document(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {"events": msgspec.json.encode(rows).decode()}


# --- keeping it in shape -----------------------------------------------------------------------------------


async def make_partitions(connection: AsyncConnection, *, days_ahead: int) -> None:
    """Makes what is missing for today and that many days; does nothing while somebody else is at it."""
    await connection.execute(text("SELECT usage_make_partitions(:days)"), {"days": days_ahead})


async def drop_old(connection: AsyncConnection, table: Table, *, keep_days: int) -> None:
    """Drops the partitions that hold only what is older; does nothing while somebody else is at it."""
    await connection.execute(
        text("SELECT usage_drop_partitions(:table, :days)"), {"table": table.name, "days": keep_days}
    )


# --- whose it is -------------------------------------------------------------------------------------------


async def store_id(connection: AsyncConnection) -> StoreId:
    """Which store this is: what lies on local disks says which one it is for. No tenant's matter."""
    return StoreId((await connection.execute(select(store_identity.c.id))).scalar_one())


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
