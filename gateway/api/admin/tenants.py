"""`/admin/v1/tenants`: who shares the model, and how."""

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType

from gateway import administration, engine_administration
from gateway.api.admin.described import answered, described
from gateway.api.admin.desk import Desk, desk_for
from gateway.api.admin.pages import After, Limit, Page, page_of
from gateway.api.body import read_body
from gateway.operators.scopes import OperatorScope
from gateway.tenants.tenant import Tenant
from gateway.tenants.weight import LEAST_WEIGHT, MOST_WEIGHT

router = APIRouter(prefix="/tenants", tags=["Management: tenants"])

Weight = Annotated[
    float, Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT, description="Its share relative to others of its kind.")
]


class NewTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to be made, with its first project and without limits."""

    name: str
    weight: Weight = 1.0


class TenantChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is not named stays. `cache_group` null: it shares its system prompts' memory with nobody."""

    weight: Weight | UnsetType = UNSET
    cache_group: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET


class TenantView(msgspec.Struct, frozen=True):
    """A tenant. One that is not `enabled` is refused; what it has running finishes."""

    id: str
    name: str
    weight: float
    cache_group: str | None
    enabled: bool
    created_at: datetime
    object: Literal["tenant"] = "tenant"


SHAPES: Final = (NewTenant, TenantChanges, TenantView, Page[TenantView])


@router.post(
    "", summary="Create a tenant", **described(TenantView, body=NewTenant, status=201, errors=(409,))
)
async def create_tenant(request: Request, desk: Desk = desk_for(OperatorScope.TENANTS_WRITE)) -> Response:
    """409 when the name is taken."""
    body = await read_body(request, NewTenant)
    tenant = await administration.create_tenant(desk.database, desk.actor, body.name, weight=body.weight)
    return answered(_view(tenant), status=201)


@router.get("", summary="List tenants by name", **described(Page[TenantView], errors=(404,)))
async def list_tenants(
    limit: Limit = 20, after: After = None, desk: Desk = desk_for(OperatorScope.TENANTS_READ)
) -> Response:
    """A page."""
    found = await administration.page_of_tenants(desk.database, limit=limit + 1, after=after)
    return answered(page_of([_view(tenant) for tenant in found], limit=limit))


@router.get("/{tenant}", summary="Show a tenant", **described(TenantView, errors=(404,)))
async def show_tenant(tenant: str, desk: Desk = desk_for(OperatorScope.TENANTS_READ)) -> Response:
    """By id or name."""
    return answered(_view((await administration.get_tenant(desk.database, tenant)).tenant))


@router.patch(
    "/{tenant}",
    summary="Change a tenant's weight or cache group, or switch it off and on",
    **described(TenantView, body=TenantChanges, errors=(404,)),
)
async def update_tenant(
    request: Request, tenant: str, desk: Desk = desk_for(OperatorScope.TENANTS_WRITE)
) -> Response:
    """Binds within 2 seconds. May be repeated."""
    changes = await read_body(request, TenantChanges)
    current = (await administration.get_tenant(desk.database, tenant)).tenant
    return answered(_view(await _changed(desk, current, changes)))


async def _changed(desk: Desk, tenant: Tenant, changes: TenantChanges) -> Tenant:
    """First what may be refused: no change comes before a refusal. What is so already is left alone."""
    group, weight, enabled = changes.cache_group, changes.weight, changes.enabled
    if group is not UNSET and group != tenant.cache_group:
        tenant = await administration.set_cache_group(desk.database, desk.actor, tenant.id, group)
    if weight is not UNSET and weight != tenant.weight:
        tenant = await engine_administration.set_weight(desk.database, desk.actor, tenant.id, weight)
    if enabled is not UNSET and enabled != (tenant.disabled_at is None):
        tenant = await administration.set_tenant_enabled(
            desk.database, desk.actor, tenant.id, enabled=enabled
        )
    return tenant


def _view(tenant: Tenant) -> TenantView:
    return TenantView(
        id=tenant.id,
        name=tenant.name,
        weight=tenant.weight,
        cache_group=tenant.cache_group,
        enabled=tenant.disabled_at is None,
        created_at=tenant.created_at,
    )
