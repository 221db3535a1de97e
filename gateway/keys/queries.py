"""All SQL of API keys."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import RowMapping, Select, func, insert, or_, select, tuple_, union, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.keys.key import ApiKey, KeyTerms
from gateway.keys.scope import Scope
from gateway.keys.tables import api_key
from gateway.tenants.ids import KeyId, ProjectId, TenantId
from gateway.tenants.project import Project
from gateway.tenants.tables import project, tenant

_SECRET_COLUMNS: Final = ("secret_hash", "previous_secret_hash")


@dataclass(frozen=True, kw_only=True)
class StoredSecret:
    """One of a key's secrets, as a digest. `expires_in_seconds` is by the store's clock; None: never."""

    digest: bytes = field(repr=False)
    expires_in_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """What a presented key is checked against. `secrets`: the newest, and the one before it if any."""

    id: KeyId
    tenant: TenantId
    tenant_name: str
    tenant_disabled: bool
    weight: float
    cache_group: str | None
    project: ProjectId
    project_name: str
    project_weight: float
    key_weight: float
    scopes: frozenset[Scope]
    models: frozenset[str] | None
    revoked: bool
    secrets: tuple[StoredSecret, ...]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Keys that changed, themselves or by tenant or project, and when; up to `now` by the store's clock."""

    keys: frozenset[tuple[KeyId, datetime]]
    now: datetime


async def record(connection: AsyncConnection, key: KeyId) -> KeyRecord | None:
    """The key of this public id, whoever it belongs to."""
    return (await records(connection, [key])).get(key)


async def records(connection: AsyncConnection, keys: Collection[KeyId]) -> dict[KeyId, KeyRecord]:
    """The keys of these public ids, whoever they belong to."""
    # An old secret ends with its key at the latest; `least` passes over a null.
    previous_expires_at = func.least(api_key.c.previous_expires_at, api_key.c.expires_at)
    rows = await connection.execute(
        select(
            api_key.c.id,
            api_key.c.tenant_id,
            api_key.c.project_id,
            api_key.c.scopes,
            api_key.c.models,
            api_key.c.secret_hash,
            api_key.c.previous_secret_hash,
            api_key.c.revoked_at.is_not(None).label("revoked"),
            func.extract("epoch", api_key.c.expires_at - func.clock_timestamp()).label("expires_in"),
            func.extract("epoch", previous_expires_at - func.clock_timestamp()).label("previous_expires_in"),
            tenant.c.name.label("tenant_name"),
            tenant.c.weight,
            tenant.c.cache_group,
            tenant.c.disabled_at.is_not(None).label("disabled"),
            project.c.name.label("project_name"),
            project.c.weight.label("project_weight"),
            api_key.c.weight.label("key_weight"),
        )
        .join(project, project.c.id == api_key.c.project_id)
        .join(tenant, tenant.c.id == api_key.c.tenant_id)
        .where(api_key.c.id.in_(sorted(keys)))
    )
    return {record.id: record for record in map(_record, rows.mappings())}


async def changes_since(
    connection: AsyncConnection, since: datetime | None, *, overlap_seconds: float
) -> Changes:
    """What changed after `since`, and in the `overlap_seconds` before it, as commits need not come in order.

    Without `since`: what changed in the overlap before now.
    """
    now = await connection.scalar(select(func.now()))
    assert now is not None
    start = (now if since is None else since) - func.make_interval(0, 0, 0, 0, 0, 0, overlap_seconds)
    themselves = select(api_key.c.id, api_key.c.updated_at).where(api_key.c.updated_at > start)
    by_tenant = (
        select(api_key.c.id, tenant.c.updated_at)
        .join(tenant, tenant.c.id == api_key.c.tenant_id)
        .where(tenant.c.updated_at > start)
    )
    by_project = (
        select(api_key.c.id, project.c.updated_at)
        .join(project, project.c.id == api_key.c.project_id)
        .where(project.c.updated_at > start)
    )
    rows = await connection.execute(union(themselves, by_tenant, by_project))  # each part has its index
    return Changes(keys=frozenset((KeyId(key), at) for key, at in rows), now=now)


async def mark_used(connection: AsyncConnection, keys: Collection[KeyId]) -> None:
    """Stores that these keys were used just now. Not a change that caches must hear of."""
    await connection.execute(
        update(api_key).where(api_key.c.id.in_(sorted(keys))).values(last_used_at=func.now())
    )


async def add(
    connection: AsyncConnection,
    *,
    key: KeyId,
    project: Project,
    name: str,
    weight: float,
    digest: bytes,
    redacted_value: str,
    scopes: Collection[Scope],
    models: Collection[str] | None,
    expires_at: datetime | None,
) -> ApiKey:
    """Stores a new key."""
    await connection.execute(
        insert(api_key).values(
            id=key,
            tenant_id=project.tenant,
            project_id=project.id,
            name=name,
            weight=weight,
            secret_hash=digest,
            redacted_value=redacted_value,
            scopes=sorted(scopes),
            models=None if models is None else sorted(models),
            expires_at=expires_at,
        )
    )
    return await _get(connection, key)


async def renew(
    connection: AsyncConnection, key: KeyId, *, digest: bytes, redacted_value: str, overlap: timedelta
) -> ApiKey:
    """Gives a key another secret. The one before it ends after `overlap`, any older one now."""
    await connection.execute(
        update(api_key)
        .where(api_key.c.id == key)
        .values(
            secret_hash=digest,
            redacted_value=redacted_value,
            previous_secret_hash=api_key.c.secret_hash,
            previous_redacted_value=api_key.c.redacted_value,
            previous_expires_at=func.now() + overlap,
            updated_at=func.now(),
        )
    )
    return await _get(connection, key)


async def change(connection: AsyncConnection, key: KeyId, terms: KeyTerms) -> ApiKey:
    """Gives a key other terms; key caches see the change by `updated_at`."""
    await connection.execute(
        update(api_key).where(api_key.c.id == key).values(**terms, updated_at=func.now())
    )
    return await _get(connection, key)


async def find(connection: AsyncConnection, key: KeyId, *, for_update: bool = False) -> ApiKey | None:
    """By public id, whoever it belongs to: for operators."""
    found = _visible().where(api_key.c.id == key)
    rows = await connection.execute(found.with_for_update(of=api_key) if for_update else found)
    row = rows.mappings().one_or_none()
    return None if row is None else _api_key(row)


async def all_of(connection: AsyncConnection, tenant_id: TenantId | None) -> Sequence[ApiKey]:
    """A tenant's keys, or everybody's: newest first."""
    found = _visible().order_by(api_key.c.created_at.desc(), api_key.c.id)
    if tenant_id is not None:
        found = found.where(api_key.c.tenant_id == tenant_id)
    rows = await connection.execute(found)
    return [_api_key(row) for row in rows.mappings()]


async def page(
    connection: AsyncConnection, tenant_id: TenantId | None, *, limit: int, after: KeyId | None
) -> Sequence[ApiKey]:
    """At most `limit` keys of a tenant, or of everybody, newest first; those behind the key `after`."""
    found = _visible().order_by(api_key.c.created_at.desc(), api_key.c.id.desc()).limit(limit)
    if tenant_id is not None:
        found = found.where(api_key.c.tenant_id == tenant_id)
    if after is not None:
        last = api_key.alias()
        place = select(last.c.created_at, last.c.id).where(last.c.id == after).scalar_subquery()
        found = found.where(tuple_(api_key.c.created_at, api_key.c.id) < place)
    rows = await connection.execute(found)
    return [_api_key(row) for row in rows.mappings()]


async def num_usable_by_tenant(connection: AsyncConnection) -> dict[TenantId, int]:
    """How many keys of each tenant still let somebody in; tenants with none are absent."""
    expires_later = or_(api_key.c.expires_at.is_(None), api_key.c.expires_at > func.now())
    rows = await connection.execute(
        select(api_key.c.tenant_id, func.count())
        .where(api_key.c.revoked_at.is_(None), expires_later)
        .group_by(api_key.c.tenant_id)
    )
    return {TenantId(tenant_id): num_keys for tenant_id, num_keys in rows}


async def ended_among(connection: AsyncConnection, keys: Collection[KeyId]) -> set[KeyId]:
    """Which of these keys let nobody in any more; a disabled tenant's still may again."""
    usable = select(api_key.c.id).where(
        api_key.c.id.in_(sorted(keys)),
        api_key.c.revoked_at.is_(None),
        or_(api_key.c.expires_at.is_(None), api_key.c.expires_at > func.now()),
    )
    return set(keys) - {KeyId(key) for key in (await connection.execute(usable)).scalars()}


async def revoke(connection: AsyncConnection, key: KeyId) -> ApiKey:
    """Ends a key now; one that has ended stays as it is."""
    await connection.execute(
        update(api_key)
        .where(api_key.c.id == key, api_key.c.revoked_at.is_(None))
        .values(revoked_at=func.now(), updated_at=func.now())
    )
    return await _get(connection, key)


async def _get(connection: AsyncConnection, key: KeyId) -> ApiKey:
    found = await find(connection, key)
    assert found is not None
    return found


def _visible() -> Select[tuple[object, ...]]:
    return (
        select(
            *(column for column in api_key.c if column.name not in _SECRET_COLUMNS),
            tenant.c.name.label("tenant_name"),
            project.c.name.label("project_name"),
        )
        .join(tenant, tenant.c.id == api_key.c.tenant_id)
        .join(project, project.c.id == api_key.c.project_id)
    )


def _api_key(row: RowMapping) -> ApiKey:
    return ApiKey(
        id=KeyId(row["id"]),
        tenant=TenantId(row["tenant_id"]),
        tenant_name=row["tenant_name"],
        project=ProjectId(row["project_id"]),
        project_name=row["project_name"],
        name=row["name"],
        weight=row["weight"],
        redacted_value=row["redacted_value"],
        scopes=_scopes(row),
        models=None if row["models"] is None else tuple(row["models"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
        previous_redacted_value=row["previous_redacted_value"],
        previous_expires_at=row["previous_expires_at"],
    )


def _record(row: RowMapping) -> KeyRecord:
    return KeyRecord(
        id=KeyId(row["id"]),
        tenant=TenantId(row["tenant_id"]),
        tenant_name=row["tenant_name"],
        tenant_disabled=row["disabled"],
        weight=row["weight"],
        cache_group=row["cache_group"],
        project=ProjectId(row["project_id"]),
        project_name=row["project_name"],
        project_weight=row["project_weight"],
        key_weight=row["key_weight"],
        scopes=frozenset(_scopes(row)),
        models=None if row["models"] is None else frozenset(row["models"]),
        revoked=row["revoked"],
        secrets=tuple(_secrets(row)),
    )


def _scopes(row: RowMapping) -> tuple[Scope, ...]:
    """In the order of their definition; one that only a newer version knows is left out."""
    return tuple(scope for scope in Scope if scope in row["scopes"])


def _secrets(row: RowMapping) -> Iterator[StoredSecret]:
    for digest, expires_in in (
        ("secret_hash", "expires_in"),
        ("previous_secret_hash", "previous_expires_in"),
    ):
        if row[digest] is not None:
            seconds = None if row[expires_in] is None else float(row[expires_in])
            yield StoredSecret(digest=bytes(row[digest]), expires_in_seconds=seconds)
