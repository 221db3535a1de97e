"""All SQL of limits, buckets, leases and replicas. It decides nothing and opens no transaction.

Credit moves in exchanges (`begin_exchange` .. `save`): whoever changes a bucket holds its row's lock, taken
in the order of ids by everybody. What is lent to a replica (`quota_lease`) only that replica changes while it
lives; another may once it is fenced.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Final

from sqlalchemy import RowMapping, delete, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestClass
from gateway.quotas.limits import COUNTING, MAX_LIMIT, LimitId, QuotaKind, QuotaLimit, Scope
from gateway.quotas.policy import Bucket, BucketId, OpenBucket
from gateway.quotas.tables import quota_lease, quota_limit, replica, replica_load
from gateway.tenants.ids import TenantId

LIFE_LOCKS: Final = 0x51_01CF  # first half of the advisory lock that a replica holds while it lives
REPLICA_SEEN_SECONDS: Final = 5.0  # who was silent for longer takes no share when credit is lent ahead
WANTED_SECONDS: Final = 1.0
ROUNDING: Final = 1e-6  # of sums of doubles

_BEGIN: Final = text(
    """
    WITH before AS (
        SELECT exchange_number FROM replica WHERE epoch = :epoch AND fenced_at IS NULL FOR UPDATE
    )
    UPDATE replica SET exchange_number = :number, heartbeat_at = clock_timestamp()
    FROM before WHERE epoch = :epoch
    RETURNING before.exchange_number AS previous, clock_timestamp() AS now,
        (SELECT count(*) FROM replica others
         WHERE others.fenced_at IS NULL AND others.heartbeat_at > now() - make_interval(secs => :seen)) AS num
    """
)

# `now()` is the transaction's: both statements agree on the window.
_WINDOW_START: Final = """
    CASE l.kind WHEN 'tokens_per_day' THEN date_trunc('day', now(), 'UTC')
                WHEN 'tokens_per_month' THEN date_trunc('month', now(), 'UTC')
                ELSE '-infinity' END
"""
_WINDOW_LEFT: Final = """
    CASE l.kind
        WHEN 'tokens_per_day' THEN date_trunc('day', now(), 'UTC') + interval '1 day' - clock_timestamp()
        WHEN 'tokens_per_month'
            THEN date_trunc('month', now(), 'UTC') + interval '1 month' - clock_timestamp()
    END
"""
_MAKE_BUCKETS: Final = text(
    f"""
    INSERT INTO quota_bucket (limit_id, tenant_id, window_start, capacity, available)
    SELECT l.id, l.tenant_id, {_WINDOW_START}, l.value, l.value
    FROM quota_limit l WHERE l.id = ANY(:limits) AND l.value IS NOT NULL
    ORDER BY l.id ON CONFLICT DO NOTHING
    """  # noqa: S608 - made of constants
)
_OPEN_BUCKETS: Final = text(
    f"""
    SELECT l.id AS limit_id, b.id, extract(epoch FROM {_WINDOW_LEFT})::float8 AS seconds_left
    FROM quota_limit l JOIN quota_bucket b ON b.limit_id = l.id AND b.window_start = {_WINDOW_START}
    WHERE l.id = ANY(:limits)
    """  # noqa: S608 - made of constants
)

# What replicas have idle is not used. A rate has refilled since it was last looked at.
_USED: Final = text(
    f"""
    SELECT b.limit_id, b.capacity - least(
               b.available + CASE WHEN l.kind LIKE '%_per_minute'
                   THEN b.capacity / 60 * extract(epoch FROM clock_timestamp() - b.refilled_at) ELSE 0 END,
               b.capacity - b.outstanding
           ) - (SELECT coalesce(sum(idle), 0) FROM quota_lease o WHERE o.bucket_id = b.id) AS used
    FROM quota_bucket b JOIN quota_limit l ON l.id = b.limit_id
    WHERE b.tenant_id = :tenant AND b.window_start = {_WINDOW_START}
    """  # noqa: S608 - made of constants
)

_LOCK: Final = text(
    """
    SELECT b.id, l.kind, b.capacity, coalesce(l.value, :unlimited)::float8 AS limit_value, b.available,
           b.outstanding, b.refilled_at, b.wanted_until > now() AS is_wanted,
           coalesce(own.granted, 0) AS granted,
           (SELECT coalesce(sum(o.idle), 0) FROM quota_lease o
            WHERE o.bucket_id = b.id AND o.epoch <> :epoch) AS idle_elsewhere
    FROM quota_bucket b
    JOIN quota_limit l ON l.id = b.limit_id
    LEFT JOIN quota_lease own ON own.bucket_id = b.id AND own.epoch = :epoch
    WHERE b.id = ANY(:buckets) ORDER BY b.id FOR UPDATE OF b
    """
)

# One statement, hence one round trip, for buckets and leases.
_SAVE: Final = text(
    """
    WITH new AS (
        SELECT * FROM unnest(
            CAST(:buckets AS bigint[]), CAST(:capacity AS float8[]), CAST(:available AS float8[]),
            CAST(:outstanding AS float8[]), CAST(:granted AS float8[]), CAST(:idle AS float8[]),
            CAST(:wanted AS bool[])
        ) AS new (id, capacity, available, outstanding, granted, idle, wanted)
    ), saved AS (
        UPDATE quota_bucket b
        SET capacity = new.capacity, available = new.available, outstanding = new.outstanding,
            refilled_at = greatest(b.refilled_at, CAST(:now AS timestamptz)),
            wanted_until = CASE WHEN new.wanted
                THEN CAST(:now AS timestamptz) + make_interval(secs => :wanted_for) ELSE b.wanted_until END
        FROM new WHERE b.id = new.id
        RETURNING b.id, b.tenant_id
    ), over AS (
        DELETE FROM quota_lease l USING new
        WHERE l.bucket_id = new.id AND l.epoch = :epoch AND new.granted = 0
    )
    INSERT INTO quota_lease (bucket_id, epoch, tenant_id, granted, idle)
    SELECT new.id, :epoch, saved.tenant_id, new.granted, new.idle
    FROM new JOIN saved ON saved.id = new.id WHERE new.granted <> 0
    ON CONFLICT (bucket_id, epoch) DO UPDATE SET granted = excluded.granted, idle = excluded.idle
    """
)

# Nobody knows a life that was closed. Who lives, and was not heard of for long, is over for the moment.
_OVER: Final = text(
    """
    SELECT asked.epoch FROM unnest(CAST(:epochs AS bigint[])) AS asked (epoch) LEFT JOIN replica USING (epoch)
    WHERE replica.epoch IS NULL OR replica.fenced_at IS NOT NULL
       OR replica.heartbeat_at < clock_timestamp() - make_interval(secs => CAST(:silent AS float8))
    """
)

# A life is over when its process let go of the lock that it holds on a connection of its own, and does not
# beat: Postgres lets go for whoever is killed; the beat gives one who was only cut off time to come back.
_FENCE_THE_DEAD: Final = text(
    """
    WITH silent AS MATERIALIZED (
        SELECT epoch FROM replica
        WHERE epoch <> :own AND fenced_at IS NULL
          AND heartbeat_at < clock_timestamp() - make_interval(secs => :dead_after)
    ), dead AS MATERIALIZED (
        SELECT epoch FROM silent WHERE pg_try_advisory_xact_lock(:life_locks, epoch::int)
    )
    UPDATE replica SET fenced_at = clock_timestamp() FROM dead WHERE replica.epoch = dead.epoch
    """
)


@dataclass(frozen=True, kw_only=True)
class Began:
    """An exchange under way. `previous` is the number of the last one that took effect."""

    previous: int
    now: datetime
    num_replicas: int


@dataclass(frozen=True, kw_only=True)
class LockedBucket:
    """A bucket as stored. `pool` of its state is 0: only its replica knows what it has free."""

    state: Bucket
    limit_value: float
    granted: float
    elapsed_seconds: float
    is_wanted: bool


@dataclass(frozen=True, kw_only=True)
class SavedBucket:
    """A bucket as it will be stored, with what this replica holds of it and has idle."""

    state: Bucket
    granted: float
    idle: float
    wants: bool


# --- limits ------------------------------------------------------------------------------------------------


async def limits_of(connection: AsyncConnection, tenant: TenantId) -> list[QuotaLimit]:
    """All limits of a tenant, its projects and its keys."""
    rows = await connection.execute(
        select(quota_limit)
        .where(quota_limit.c.tenant_id == tenant, quota_limit.c.value.is_not(None))
        .order_by(quota_limit.c.id)
    )
    return [_limit(row) for row in rows.mappings()]


async def page_of_limits(
    connection: AsyncConnection, tenant: TenantId, *, limit: int, after: int | None
) -> list[QuotaLimit]:
    """At most `limit` limits of a tenant, oldest first; those behind the one of the id `after`."""
    rows = await connection.execute(
        select(quota_limit)
        .where(quota_limit.c.tenant_id == tenant, quota_limit.c.value.is_not(None))
        .where(quota_limit.c.id > (after or 0))
        .order_by(quota_limit.c.id)
        .limit(limit)
    )
    return [_limit(row) for row in rows.mappings()]


async def limits_by_tenant(connection: AsyncConnection) -> dict[TenantId, list[QuotaLimit]]:
    """Everybody's limits: for operators."""
    rows = await connection.execute(
        select(quota_limit).where(quota_limit.c.value.is_not(None)).order_by(quota_limit.c.id)
    )
    found: dict[TenantId, list[QuotaLimit]] = {}
    for row in rows.mappings():
        found.setdefault(TenantId(row["tenant_id"]), []).append(_limit(row))
    return found


async def save_limit(
    connection: AsyncConnection,
    *,
    tenant: TenantId,
    scope: Scope,
    scope_id: str,
    kind: QuotaKind,
    model: str | None,
    request_class: RequestClass | None,
    value: int | None,
) -> None:
    """Sets one limit, or lifts it with None. What was used stays used."""
    wanted = upsert(quota_limit).values(
        tenant_id=tenant,
        scope=scope.value,
        scope_id=scope_id,
        kind=kind.value,
        model=model,
        request_class=request_class,
        value=value,
    )
    await connection.execute(
        wanted.on_conflict_do_update(
            constraint="uq_quota_limit_what", set_={"value": value, "updated_at": func.now()}
        )
    )


async def used_of(connection: AsyncConnection, tenant: TenantId) -> dict[LimitId, int]:
    """How much of a tenant's limits is used now, in their current windows; those never used are absent."""
    rows = await connection.execute(_USED, {"tenant": tenant})
    return {LimitId(row.limit_id): max(0, ceil(row.used - ROUNDING)) for row in rows}


async def changed_since(
    connection: AsyncConnection, since: datetime | None, *, overlap_seconds: float
) -> tuple[frozenset[TenantId], datetime]:
    """Tenants whose limits changed after `since` or in the overlap before it, and the store's time now."""
    now = await connection.scalar(select(func.now()))
    assert now is not None
    start = (now if since is None else since) - func.make_interval(0, 0, 0, 0, 0, 0, overlap_seconds)
    rows = await connection.execute(
        select(quota_limit.c.tenant_id).where(quota_limit.c.updated_at > start).distinct()
    )
    return frozenset(TenantId(tenant) for tenant in rows.scalars()), now


# --- exchanges ---------------------------------------------------------------------------------------------


async def begin_exchange(connection: AsyncConnection, *, epoch: int, number: int) -> Began | None:
    """Says that the replica lives, and takes the exchange's number; None: its life was ended by others."""
    rows = await connection.execute(_BEGIN, {"epoch": epoch, "number": number, "seen": REPLICA_SEEN_SECONDS})
    row = rows.one_or_none()
    return None if row is None else Began(previous=row.previous, now=row.now, num_replicas=row.num)


async def now(connection: AsyncConnection) -> Began:
    """The store's time, for who changes buckets without an exchange."""
    moment = await connection.scalar(select(func.clock_timestamp()))
    assert moment is not None
    return Began(previous=0, now=moment, num_replicas=1)


async def open_buckets(connection: AsyncConnection, limits: Sequence[LimitId]) -> list[OpenBucket]:
    """The buckets of these limits at this moment, made where there is none; lifted limits have none."""
    await connection.execute(_MAKE_BUCKETS, {"limits": list(limits)})
    rows = await connection.execute(_OPEN_BUCKETS, {"limits": list(limits)})
    return [
        OpenBucket(limit=LimitId(row.limit_id), id=BucketId(row.id), seconds_left=row.seconds_left)
        for row in rows
    ]


async def lock(
    connection: AsyncConnection, buckets: Sequence[BucketId], *, epoch: int, began: Began
) -> dict[BucketId, LockedBucket]:
    """Waits for the buckets, in one order for all, and keeps them until the transaction ends."""
    rows = await connection.execute(
        _LOCK, {"buckets": sorted(buckets), "epoch": epoch, "unlimited": MAX_LIMIT}
    )
    return {BucketId(row["id"]): _locked(row, began) for row in rows.mappings()}


async def save(
    connection: AsyncConnection, buckets: Sequence[SavedBucket], *, epoch: int, now: datetime
) -> None:
    """Stores locked buckets, and what a replica has been lent of them."""
    await connection.execute(
        _SAVE,
        {
            "epoch": epoch,
            "now": now,
            "wanted_for": WANTED_SECONDS,
            "buckets": [bucket.state.id for bucket in buckets],
            "capacity": [bucket.state.capacity for bucket in buckets],
            "available": [bucket.state.available for bucket in buckets],
            "outstanding": [bucket.state.outstanding for bucket in buckets],
            "granted": [bucket.granted for bucket in buckets],
            "idle": [bucket.idle for bucket in buckets],
            "wanted": [bucket.wants for bucket in buckets],
        },
    )


async def save_load(connection: AsyncConnection, num_live: Mapping[TenantId, int], *, epoch: int) -> None:
    """Stores how many requests of these tenants the replica serves; 0 removes a row."""
    over = [tenant for tenant, num in num_live.items() if num == 0]
    if over:
        await connection.execute(
            delete(replica_load).where(replica_load.c.epoch == epoch, replica_load.c.tenant_id.in_(over))
        )
    rows = [
        {"epoch": epoch, "tenant_id": tenant, "num_live": num} for tenant, num in num_live.items() if num > 0
    ]
    if rows:
        wanted = upsert(replica_load)
        await connection.execute(
            wanted.on_conflict_do_update(
                index_elements=["epoch", "tenant_id"], set_={"num_live": wanted.excluded.num_live}
            ),
            rows,
        )


async def num_live_by_tenant(connection: AsyncConnection) -> dict[TenantId, int]:
    """Requests that replicas serve right now; tenants with none are absent. For operators."""
    rows = await connection.execute(
        select(replica_load.c.tenant_id, func.sum(replica_load.c.num_live)).group_by(replica_load.c.tenant_id)
    )
    return {TenantId(tenant): int(num) for tenant, num in rows}


# --- lives -------------------------------------------------------------------------------------------------


async def register_replica(connection: AsyncConnection, name: str) -> int:
    """A new life of the process `name`; its epoch was never given before."""
    epoch = await connection.scalar(insert(replica).values(name=name).returning(replica.c.epoch))
    assert epoch is not None
    return int(epoch)


async def hold_life(connection: AsyncConnection, *, epoch: int) -> None:
    """Takes the lock that shows others that this life goes on; it lasts as long as the connection."""
    await connection.execute(
        text("SELECT pg_advisory_lock(:life_locks, :epoch)"), {"life_locks": LIFE_LOCKS, "epoch": epoch}
    )


async def ended_lives(
    connection: AsyncConnection, *, own: int, dead_after_seconds: float | None
) -> list[int]:
    """Lives that are over and not yet closed; first ends those of processes that are gone.

    Gone is who let go of its life's lock and did not beat for `dead_after_seconds`; None: nobody is judged.
    """
    if dead_after_seconds is not None:
        await connection.execute(
            _FENCE_THE_DEAD, {"own": own, "dead_after": dead_after_seconds, "life_locks": LIFE_LOCKS}
        )
    rows = await connection.execute(
        select(replica.c.epoch).where(replica.c.fenced_at.is_not(None), replica.c.epoch != own)
    )
    return [int(epoch) for epoch in rows.scalars()]


async def lives_over(
    connection: AsyncConnection, epochs: Collection[int], *, silent_seconds: float | None
) -> set[int]:
    """Which of these lives have ended, or did not beat for `silent_seconds`; None: silence is no sign."""
    rows = await connection.execute(_OVER, {"epochs": sorted(epochs), "silent": silent_seconds})
    return set(rows.scalars())


async def unfinished_lives(connection: AsyncConnection) -> set[int]:
    """Lives that go on, or are over and not yet closed."""
    return set((await connection.execute(select(replica.c.epoch))).scalars())


async def end_life(connection: AsyncConnection, *, epoch: int) -> None:
    """Ends a life, of one's own say, before it is closed."""
    await connection.execute(
        update(replica)
        .where(replica.c.epoch == epoch)
        .values(fenced_at=func.coalesce(replica.c.fenced_at, func.clock_timestamp()))
    )


async def lock_life(connection: AsyncConnection, *, epoch: int) -> None:
    """No other transaction closes the life meanwhile."""
    await connection.execute(select(replica.c.epoch).where(replica.c.epoch == epoch).with_for_update())


async def leased_buckets(connection: AsyncConnection, *, epoch: int) -> list[BucketId]:
    """Of which buckets a life has been lent something."""
    rows = await connection.execute(select(quota_lease.c.bucket_id).where(quota_lease.c.epoch == epoch))
    return [BucketId(bucket) for bucket in rows.scalars()]


async def forget_life(connection: AsyncConnection, *, epoch: int) -> None:
    """Removes what is left of a life that holds nothing any more."""
    await connection.execute(delete(replica_load).where(replica_load.c.epoch == epoch))
    await connection.execute(delete(replica).where(replica.c.epoch == epoch))


def _limit(row: RowMapping) -> QuotaLimit:
    request_class = row["request_class"]
    return QuotaLimit(
        id=LimitId(row["id"]),
        tenant=TenantId(row["tenant_id"]),
        scope=Scope(row["scope"]),
        scope_id=row["scope_id"],
        kind=QuotaKind(row["kind"]),
        value=row["value"],
        model=row["model"],
        request_class=None if request_class is None else RequestClass(request_class),
    )


def _locked(row: RowMapping, began: Began) -> LockedBucket:
    state = Bucket(
        id=BucketId(row["id"]),
        counting=COUNTING[QuotaKind(row["kind"])],
        capacity=row["capacity"],
        available=row["available"],
        outstanding=row["outstanding"],
        pool=0.0,
        idle_elsewhere=row["idle_elsewhere"],
        num_replicas=began.num_replicas,
    )
    return LockedBucket(
        state=state,
        limit_value=row["limit_value"],
        granted=row["granted"],
        elapsed_seconds=(began.now - row["refilled_at"]).total_seconds(),
        is_wanted=row["is_wanted"],
    )
