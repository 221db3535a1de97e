"""All SQL of limits, buckets, reservations and replicas. It decides nothing and opens no transaction.

Whoever counts or changes a tenant's use first takes `lock`, then asks in a later statement: a statement sees
what was committed before it began, so one that both waits and counts would count too little.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import RowMapping, delete, func, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestClass
from gateway.quotas.held import Held
from gateway.quotas.limits import QuotaKind, TenantLimits
from gateway.quotas.policy import Standing
from gateway.quotas.tables import quota_bucket, quota_limit, replica, reservation
from gateway.tenants.ids import KeyId, ProjectId, TenantId

_LOCK: Final = text(
    "SELECT tenant_id FROM quota_bucket WHERE tenant_id = ANY(:tenants) ORDER BY tenant_id FOR UPDATE"
)

_STANDINGS: Final = text(
    """
    SELECT b.tenant_id, b.available, b.refilled_at, clock_timestamp() AS now, l.slots, l.tokens,
           u.num_live, u.held_tokens
    FROM quota_bucket b
    CROSS JOIN LATERAL (
        SELECT max(value) FILTER (WHERE kind = 'concurrent_requests') AS slots,
               max(value) FILTER (WHERE kind = 'tokens_per_minute') AS tokens
        FROM quota_limit WHERE tenant_id = b.tenant_id
    ) l
    CROSS JOIN LATERAL (
        SELECT count(*) AS num_live, coalesce(sum(tokens), 0) AS held_tokens
        FROM reservation WHERE tenant_id = b.tenant_id
    ) u
    WHERE b.tenant_id = ANY(:tenants)
    """
)

_SAVE_BUCKETS_SQL: Final = """
    UPDATE quota_bucket b SET available = new.available, refilled_at = new.refilled_at
    FROM unnest(
        CAST(:bucket_tenants AS text[]), CAST(:available AS float8[]), CAST(:refilled_at AS timestamptz[])
    ) AS new (tenant_id, available, refilled_at)
    WHERE b.tenant_id = new.tenant_id
    """
_SAVE_BUCKETS: Final = text(_SAVE_BUCKETS_SQL)

# One statement, hence one round trip, for the buckets and what was taken out of them.
_HOLD: Final = text(
    f"""
    WITH buckets AS ({_SAVE_BUCKETS_SQL})
    INSERT INTO reservation
        (request_id, tenant_id, project_id, key_id, model, request_class, tokens, admitted_at, epoch)
    SELECT *, CAST(:epoch AS bigint) FROM unnest(
        CAST(:request_ids AS text[]), CAST(:tenants AS text[]), CAST(:projects AS text[]),
        CAST(:keys AS text[]), CAST(:models AS text[]), CAST(:classes AS text[]),
        CAST(:tokens AS int[]), CAST(:admitted_at AS timestamptz[])
    )
    """  # noqa: S608 - made of constants
)

# A reservation without a living replica behind it; `epoch` is all that is left of that replica.
_DEAD_EPOCHS: Final = text(
    """
    SELECT DISTINCT r.epoch FROM reservation r
    WHERE NOT EXISTS (
        SELECT 1 FROM replica p
        WHERE p.epoch = r.epoch AND p.heartbeat_at > now() - make_interval(secs => :dead_after_seconds)
    )
    """
)


@dataclass(frozen=True, kw_only=True)
class TimedStanding:
    """A standing as stored; its bucket was refilled `elapsed_seconds` before `now` (the store's clock)."""

    standing: Standing
    elapsed_seconds: float
    now: datetime


# Tokens in a tenant's bucket, and the moment up to which it was refilled.
Buckets = Mapping[TenantId, tuple[float, datetime]]


async def lock(connection: AsyncConnection, tenants: Sequence[TenantId]) -> None:
    """Waits for the tenants' buckets, in one order for all, and keeps them until the transaction ends."""
    await connection.execute(_LOCK, {"tenants": list(tenants)})


async def standings(
    connection: AsyncConnection, tenants: Sequence[TenantId]
) -> dict[TenantId, TimedStanding]:
    """Limits and use of each of the locked tenants."""
    rows = await connection.execute(_STANDINGS, {"tenants": list(tenants)})
    return {TenantId(row["tenant_id"]): _timed_standing(row) for row in rows.mappings()}


async def hold(connection: AsyncConnection, *, epoch: int, held: Sequence[Held], buckets: Buckets) -> None:
    """Stores who lives from now on, and what the locked tenants' buckets have left."""
    await connection.execute(
        _HOLD,
        {
            **_bucket_values(buckets),
            "epoch": epoch,
            "request_ids": [one.request_id for one in held],
            "tenants": [one.tenant for one in held],
            "projects": [one.project for one in held],
            "keys": [one.key for one in held],
            "models": [one.model for one in held],
            "classes": [one.request_class.value for one in held],
            "tokens": [one.tokens for one in held],
            "admitted_at": [one.admitted_at for one in held],
        },
    )


async def delete_reservations(
    connection: AsyncConnection, *, tenants: Sequence[TenantId], request_ids: Sequence[str]
) -> dict[str, int]:
    """Ends reservations of locked tenants. What each that still existed held of its bucket, in tokens."""
    gone = await connection.execute(
        delete(reservation)
        .where(reservation.c.request_id.in_(request_ids), reservation.c.tenant_id.in_(tenants))
        .returning(reservation.c.request_id, func.coalesce(reservation.c.tokens, 0))
    )
    return {request_id: tokens for request_id, tokens in gone}


async def save_buckets(connection: AsyncConnection, buckets: Buckets) -> None:
    """Stores what locked tenants' buckets hold."""
    await connection.execute(_SAVE_BUCKETS, _bucket_values(buckets))


async def add_bucket(connection: AsyncConnection, tenant: TenantId) -> None:
    """A new tenant's bucket; `set_limits` fills it."""
    await connection.execute(insert(quota_bucket).values(tenant_id=tenant, available=0.0))


async def save_limits(connection: AsyncConnection, tenant: TenantId, limits: TenantLimits) -> None:
    """Replaces a tenant's limits; None removes one."""
    await connection.execute(delete(quota_limit).where(quota_limit.c.tenant_id == tenant))
    values = {
        QuotaKind.CONCURRENT_REQUESTS: limits.concurrent_requests,
        QuotaKind.TOKENS_PER_MINUTE: limits.tokens_per_minute,
    }
    rows = [
        {"tenant_id": tenant, "kind": kind.value, "value": value}
        for kind, value in values.items()
        if value is not None
    ]
    if rows:
        await connection.execute(insert(quota_limit), rows)


async def register_replica(connection: AsyncConnection, name: str) -> int:
    """A new life of the process `name`; its epoch was never given before."""
    epoch = await connection.scalar(insert(replica).values(name=name).returning(replica.c.epoch))
    assert epoch is not None
    return int(epoch)


async def beat(connection: AsyncConnection, *, epoch: int, name: str) -> None:
    """Says that a replica lives, also when it had been given up meanwhile."""
    alive = upsert(replica).values(epoch=epoch, name=name)
    await connection.execute(
        alive.on_conflict_do_update(index_elements=["epoch"], set_={"heartbeat_at": func.now()})
    )


async def delete_replica(connection: AsyncConnection, *, epoch: int) -> None:
    """Says that a replica has ended."""
    await connection.execute(delete(replica).where(replica.c.epoch == epoch))


async def dead_epochs(connection: AsyncConnection, *, dead_after_seconds: float) -> list[int]:
    """Lives that ended with reservations open, of whatever tenant."""
    rows = await connection.execute(_DEAD_EPOCHS, {"dead_after_seconds": dead_after_seconds})
    return [int(epoch) for epoch in rows.scalars()]


async def held_by(connection: AsyncConnection, *, epoch: int) -> list[Held]:
    """What one life of a replica holds, of whatever tenant."""
    rows = await connection.execute(select(reservation).where(reservation.c.epoch == epoch))
    return [_held(row) for row in rows.mappings()]


async def forget_dead_replicas(connection: AsyncConnection, *, dead_after_seconds: float) -> None:
    """Drops the rows of replicas that are silent and hold nothing."""
    silent = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, dead_after_seconds)
    holds = select(reservation.c.request_id).where(reservation.c.epoch == replica.c.epoch).exists()
    await connection.execute(delete(replica).where(replica.c.heartbeat_at < silent, ~holds))


def _bucket_values(buckets: Buckets) -> dict[str, list[object]]:
    return {
        "bucket_tenants": list(buckets),
        "available": [tokens for tokens, _ in buckets.values()],
        "refilled_at": [refilled_at for _, refilled_at in buckets.values()],
    }


def _timed_standing(row: RowMapping) -> TimedStanding:
    limits = TenantLimits(concurrent_requests=row["slots"], tokens_per_minute=row["tokens"])
    return TimedStanding(
        standing=Standing(
            limits=limits,
            available=row["available"],
            held_tokens=int(row["held_tokens"]),
            num_live=row["num_live"],
        ),
        elapsed_seconds=(row["now"] - row["refilled_at"]).total_seconds(),
        now=row["now"],
    )


def _held(row: RowMapping) -> Held:
    return Held(
        request_id=row["request_id"],
        tenant=TenantId(row["tenant_id"]),
        project=ProjectId(row["project_id"]),
        key=KeyId(row["key_id"]),
        model=row["model"],
        request_class=RequestClass(row["request_class"]),
        tokens=row["tokens"],
        admitted_at=row["admitted_at"],
    )
