"""What operators may do to tenants and their limits: each change and its audit row in one transaction.

Used by the command line and the admin pages. It knows no HTTP and no terminal; who the actor is, its caller
says. Raises AdministrationError with a line for the operator, or StoreUnavailable.
"""

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.audit import queries as audit
from gateway.db import Database
from gateway.keys import queries as keys
from gateway.quotas import queries as quotas
from gateway.quotas.limits import QuotaKind, Scope, TenantLimits, tenant_limits
from gateway.tenants import queries as tenants
from gateway.tenants.errors import AlreadyExists
from gateway.tenants.ids import ProjectId, TenantId
from gateway.tenants.lookup import tenant_called
from gateway.tenants.names import checked_name
from gateway.tenants.tenant import Tenant
from gateway.tenants.weight import check_weight


@dataclass(frozen=True, kw_only=True)
class TenantSummary:
    """One line of the list of tenants. `num_keys` are those that still let somebody in."""

    tenant: Tenant
    limits: TenantLimits
    num_keys: int
    num_live_requests: int


async def create_tenant(
    database: Database, actor: str, name: str, *, limits: TenantLimits | None = None, weight: float = 1.0
) -> Tenant:
    """A new tenant with its first project. Without `limits` it is unlimited."""
    name = checked_name(name)
    check_weight(weight)
    try:
        async with database.system_transaction() as connection:
            return await _add_tenant(connection, actor, name, limits=limits or TenantLimits(), weight=weight)
    except IntegrityError as error:  # somebody else made it in the same moment
        raise AlreadyExists(f"A tenant called {name!r} exists already.") from error


async def list_tenants(database: Database) -> Sequence[TenantSummary]:
    """Every tenant, by name, with what it may use and what it has in use right now."""
    async with database.system_transaction() as connection:
        all_tenants = await tenants.all_by_name(connection)
        limits = await quotas.limits_by_tenant(connection)
        num_live = await quotas.num_live_by_tenant(connection)
        num_keys = await keys.num_usable_by_tenant(connection)
    return [
        TenantSummary(
            tenant=tenant,
            limits=tenant_limits(limits.get(tenant.id, [])),
            num_keys=num_keys.get(tenant.id, 0),
            num_live_requests=num_live.get(tenant.id, 0),
        )
        for tenant in all_tenants
    ]


async def page_of_tenants(database: Database, *, limit: int, after: str | None = None) -> Sequence[Tenant]:
    """At most `limit` tenants by name; those behind the tenant `after`. Raises NoSuchThing."""
    async with database.system_transaction() as connection:
        last = None if after is None else (await tenant_called(connection, after)).id
        return await tenants.page_by_name(connection, limit=limit, after=last)


async def get_tenant(database: Database, name_or_id: str) -> TenantSummary:
    """One tenant, by name or id. Raises NoSuchThing."""
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, name_or_id)
        limits = await quotas.limits_of(connection, tenant.id)
        num_live = await quotas.num_live_by_tenant(connection)
        num_keys = await keys.num_usable_by_tenant(connection)
    return TenantSummary(
        tenant=tenant,
        limits=tenant_limits(limits),
        num_keys=num_keys.get(tenant.id, 0),
        num_live_requests=num_live.get(tenant.id, 0),
    )


async def set_limits(
    database: Database, actor: str, tenant_name_or_id: str, limits: TenantLimits
) -> TenantLimits:
    """Replaces a tenant's limits; binding for the next request. What was used stays used."""
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, tenant_name_or_id)
        old = await _change_limits(connection, tenant.id, limits)
        await audit.record(
            connection,
            actor=actor,
            action="tenant.set_limits",
            subject=tenant.id,
            before=asdict(old),
            after=asdict(limits),
        )
    return limits


async def set_tenant_enabled(
    database: Database, actor: str, tenant_name_or_id: str, *, enabled: bool
) -> Tenant:
    """A disabled tenant's keys are refused everywhere within two seconds; its running requests finish."""
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, tenant_name_or_id, for_update=True)
        changed = await tenants.set_enabled(connection, tenant.id, enabled=enabled)
        await audit.record(
            connection,
            actor=actor,
            action="tenant.enable" if enabled else "tenant.disable",
            subject=tenant.id,
            before={"enabled": tenant.disabled_at is None},
            after={"enabled": enabled},
        )
    return changed


async def set_cache_group(
    database: Database, actor: str, tenant_name_or_id: str, cache_group: str | None
) -> Tenant:
    """Puts a tenant into a cache group, or into none; binding for requests that come 2 seconds later.

    Tenants of a group share the engines' memory of their system prompts, and so can measure whether another
    of them has sent the same one.
    """
    cache_group = None if cache_group is None else checked_name(cache_group)
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, tenant_name_or_id, for_update=True)
        changed = await tenants.set_cache_group(connection, tenant.id, cache_group)
        await audit.record(
            connection,
            actor=actor,
            action="tenant.set_cache_group",
            subject=tenant.id,
            before={"cache_group": tenant.cache_group},
            after={"cache_group": cache_group},
        )
    return changed


async def audit_trail(
    database: Database,
    *,
    limit: int,
    before_id: int | None = None,
    actor: str | None = None,
    subject: str | None = None,
) -> Sequence[audit.AuditEvent]:
    """Who changed what: at most `limit` events, newest first; those before the event `before_id`."""
    async with database.system_transaction() as connection:
        return await audit.newest(connection, limit=limit, before_id=before_id, actor=actor, subject=subject)


async def _add_tenant(
    connection: AsyncConnection, actor: str, name: str, *, limits: TenantLimits, weight: float
) -> Tenant:
    if await tenants.name_is_taken(connection, name):
        raise AlreadyExists(f"A tenant called {name!r} exists already.")
    tenant = await tenants.add(
        connection,
        tenant_id=TenantId(f"ten_{secrets.token_hex(12)}"),
        project_id=ProjectId(f"proj_{secrets.token_hex(12)}"),
        name=name,
        weight=weight,
    )
    await _change_limits(connection, tenant.id, limits)
    await audit.record(
        connection,
        actor=actor,
        action="tenant.create",
        subject=tenant.id,
        after={"name": name, "weight": weight, **asdict(limits)},
    )
    return tenant


async def _change_limits(connection: AsyncConnection, tenant: TenantId, limits: TenantLimits) -> TenantLimits:
    """Returns the old ones."""
    old = tenant_limits(await quotas.limits_of(connection, tenant))
    values = {
        QuotaKind.CONCURRENT_REQUESTS: limits.concurrent_requests,
        QuotaKind.TOKENS_PER_MINUTE: limits.tokens_per_minute,
    }
    for kind, value in values.items():
        await quotas.save_limit(
            connection,
            tenant=tenant,
            scope=Scope.TENANT,
            scope_id=tenant,
            kind=kind,
            model=None,
            request_class=None,
            value=value,
        )
    return old
