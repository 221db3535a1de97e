"""Tenants, callers and claims for tests of the store side."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from engine.protocol import RequestClass, Usage
from gateway.administration import create_tenant
from gateway.db import Database
from gateway.key_administration import issue_key
from gateway.keys.caller import Caller
from gateway.keys.scope import ALL_SCOPES
from gateway.metering import Metering
from gateway.quotas import queries as quotas
from gateway.quotas.limits import QuotaKind, Scope, TenantLimits
from gateway.quotas.reservation import Demand, Reservation
from gateway.tenants.ids import TenantId
from gateway.tenants.tenant import Tenant

PEPPER = b"pepper of the tests"
NOTHING_USED = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)
_request_numbers = count(1)


@dataclass(frozen=True, kw_only=True)
class Customer:
    """A tenant with one key and the caller behind it."""

    tenant: Tenant
    caller: Caller
    secret: str


async def make_customer(
    database: Database,
    name: str = "acme",
    *,
    concurrent_requests: int | None = None,
    tokens_per_minute: int | None = None,
    limits: Mapping[QuotaKind, int] | None = None,
) -> Customer:
    """`limits` are of the whole tenant."""
    two = TenantLimits(concurrent_requests=concurrent_requests, tokens_per_minute=tokens_per_minute)
    tenant = await create_tenant(database, "test", name, limits=two)
    for kind, value in (limits or {}).items():
        await limit_tenant(database, tenant.id, kind, value)
    issued = await issue_key(database, PEPPER, "test", tenant.id, name="first")
    caller = Caller(
        tenant=tenant.id,
        tenant_name=tenant.name,
        project=issued.key.project,
        project_name=issued.key.project_name,
        key=issued.key.id,
        weight=tenant.weight,
        scopes=ALL_SCOPES,
    )
    return Customer(tenant=tenant, caller=caller, secret=issued.secret)


async def limit_tenant(
    database: Database,
    tenant: TenantId,
    kind: QuotaKind,
    value: int | None,
    *,
    scope: Scope = Scope.TENANT,
    scope_id: str | None = None,
) -> None:
    async with database.system_transaction() as connection:
        await quotas.save_limit(
            connection,
            tenant=tenant,
            scope=scope,
            scope_id=scope_id or tenant,
            kind=kind,
            model=None,
            request_class=None,
            value=value,
        )


async def reserve(
    metering: Metering, caller: Caller, *, prompt: int = 10, output: int = 20, request_id: str | None = None
) -> Reservation:
    """Reserves exactly `prompt + output` tokens."""
    return await metering.reserve(
        request_id=request_id or f"request-{next(_request_numbers)}",
        caller=caller,
        model="model",
        request_class=RequestClass.INTERACTIVE,
        demand=Demand(prompt_tokens=prompt, output_cap=output, output_floor=output),
    )


def used(prompt: int, completion: int) -> Usage:
    return Usage(prompt_tokens=prompt, cached_tokens=0, completion_tokens=completion)
