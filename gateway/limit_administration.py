"""What operators may limit: each change and its audit row in one transaction; binding within two seconds.

Raises AdministrationError with a line for the operator, or StoreUnavailable.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestClass
from gateway.audit import queries as audit
from gateway.batches import queries as batches
from gateway.db import Database
from gateway.files import queries as files
from gateway.keys import queries as keys
from gateway.quotas import queries as quotas
from gateway.quotas.limits import LimitId, QuotaKind, QuotaLimit, Scope, check_value
from gateway.tenants.errors import BadValue, NoSuchThing
from gateway.tenants.ids import KeyId, ProjectId, TenantId
from gateway.tenants.lookup import project_called, tenant_called
from gateway.tenants.names import checked_name


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is limited: a tenant, or one project or key of it; all models or one; both classes or one."""

    tenant: str
    project: str | None = None
    key: str | None = None
    model: str | None = None
    request_class: RequestClass | None = None


@dataclass(frozen=True, kw_only=True)
class LimitUse:
    """A limit and what is used of it right now, by live requests and for good."""

    limit: QuotaLimit
    used: int


@dataclass(frozen=True)
class _Place:
    """Where a limit is kept: whose it is, and whose requests it counts together."""

    tenant: TenantId
    scope: Scope
    scope_id: str


async def set_limit(
    database: Database, actor: str, target: Target, kind: QuotaKind, value: int | None
) -> LimitUse | None:
    """Sets a limit, or lifts it with None. What was used stays used; what is so already leaves no trail.

    Returns how the limit stands then; None: there is none.
    """
    if value is not None:
        _check(value)
    if target.model is not None:
        target = replace(target, model=checked_name(target.model))
    async with database.system_transaction() as connection:
        place = await _found(connection, target)
        old = await _limit(connection, place, target, kind)
        if value != (None if old is None else old.value):
            await _save(connection, actor, place, target, kind, old=old, value=value)
        new = await _limit(connection, place, target, kind)
        used = {} if new is None else await _used(connection, new.tenant, [new])
    return None if new is None else LimitUse(limit=new, used=used.get(new.id, 0))


async def list_limits(database: Database, tenant_name_or_id: str) -> Sequence[LimitUse]:
    """All limits of a tenant, its projects and its keys, with what is used of each."""
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, tenant_name_or_id)
        limits = await quotas.limits_of(connection, tenant.id)
        used = await _used(connection, tenant.id, limits)
    return [LimitUse(limit=limit, used=used.get(limit.id, 0)) for limit in limits]


async def page_of_limits(
    database: Database, tenant_name_or_id: str, *, limit: int, after: int | None = None
) -> Sequence[LimitUse]:
    """At most `limit` limits of a tenant, its projects and its keys, oldest first; those behind `after`."""
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, tenant_name_or_id)
        limits = await quotas.page_of_limits(connection, tenant.id, limit=limit, after=after)
        used = await _used(connection, tenant.id, limits)
    return [LimitUse(limit=limit, used=used.get(limit.id, 0)) for limit in limits]


async def _used(
    connection: AsyncConnection, tenant: TenantId, limits: Sequence[QuotaLimit]
) -> dict[LimitId, int]:
    """What counts towards each limit now; for those that nothing was ever counted in it is absent."""
    used = await quotas.used_of(connection, tenant)
    for limit in limits:
        if limit.kind is QuotaKind.BATCH_ENQUEUED_TOKENS:
            used[limit.id] = await _enqueued(connection, limit)
        elif limit.kind is QuotaKind.FILE_STORAGE_BYTES:
            used[limit.id] = await _stored(connection, limit)
    return used


async def _enqueued(connection: AsyncConnection, limit: QuotaLimit) -> int:
    return await batches.enqueued_tokens(
        connection,
        limit.tenant,
        project=ProjectId(limit.scope_id) if limit.scope is Scope.PROJECT else None,
        key=KeyId(limit.scope_id) if limit.scope is Scope.KEY else None,
        model=limit.model,
    )


async def _stored(connection: AsyncConnection, limit: QuotaLimit) -> int:
    """Of the whole tenant, of a project, or of a key's project: files belong to projects."""
    stored = await files.stored_bytes(connection, limit.tenant)
    if limit.scope is Scope.TENANT:
        return sum(stored.values())
    project = ProjectId(limit.scope_id)
    if limit.scope is Scope.KEY:
        key = await keys.find(connection, KeyId(limit.scope_id))
        return 0 if key is None else stored.get(key.project, 0)
    return stored.get(project, 0)


async def _found(connection: AsyncConnection, target: Target) -> _Place:
    tenant = await tenant_called(connection, target.tenant)
    if target.project is not None and target.key is not None:
        raise BadValue("A limit is of a project or of a key, not of both.")
    if target.project is not None:
        project = await project_called(connection, tenant, target.project)
        return _Place(tenant.id, Scope.PROJECT, project.id)
    if target.key is not None:
        key = await keys.find(connection, KeyId(target.key))
        if key is None or key.tenant != tenant.id:
            raise NoSuchThing(f"{tenant.name} has no key {target.key!r}.")
        return _Place(tenant.id, Scope.KEY, key.id)
    return _Place(tenant.id, Scope.TENANT, tenant.id)


async def _limit(
    connection: AsyncConnection, place: _Place, target: Target, kind: QuotaKind
) -> QuotaLimit | None:
    wanted = (place.scope, place.scope_id, kind, target.model, target.request_class)
    for limit in await quotas.limits_of(connection, place.tenant):
        if (limit.scope, limit.scope_id, limit.kind, limit.model, limit.request_class) == wanted:
            return limit
    return None


async def _save(
    connection: AsyncConnection,
    actor: str,
    place: _Place,
    target: Target,
    kind: QuotaKind,
    *,
    old: QuotaLimit | None,
    value: int | None,
) -> None:
    await quotas.save_limit(
        connection,
        tenant=place.tenant,
        scope=place.scope,
        scope_id=place.scope_id,
        kind=kind,
        model=target.model,
        request_class=target.request_class,
        value=value,
    )
    what = {"kind": kind.value, "model": target.model, "request_class": target.request_class}
    await audit.record(
        connection,
        actor=actor,
        action="limit.set",
        subject=place.scope_id,
        before={**what, "value": None if old is None else old.value},
        after={**what, "value": value},
    )


def _check(value: int) -> None:
    try:
        check_value(value)
    except ValueError as error:
        raise BadValue(f"{error}".capitalize() + ".") from error
