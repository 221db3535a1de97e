"""`/admin/v1/limits`: how much a tenant, a project or a key may use at most, and how much of it is used.

A limit is found by what it limits: one of a kind for a tenant, or one project or key of it, for all models or
one, for both classes or one.
"""

from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from msgspec import Meta

from engine.protocol import RequestClass
from gateway import limit_administration
from gateway.api.admin.described import answered, described
from gateway.api.admin.desk import Desk, desk_for
from gateway.api.admin.pages import LONGEST_ID, AfterNumber, Limit, Named, Page, page_of
from gateway.api.body import read_body
from gateway.limit_administration import LimitUse, Target
from gateway.operators.scopes import OperatorScope
from gateway.quotas.limits import MAX_LIMIT, QuotaKind, Scope

router = APIRouter(prefix="/limits", tags=["Management: limits"])

Value = Annotated[int, Meta(ge=0, le=MAX_LIMIT, description="At most so many; 0: none at all.")]
OfTenant = Annotated[str, Query(max_length=LONGEST_ID, description="The tenant's name or id.")]


class NewLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A limit to be set: of the tenant, or of one `project` or `key`. Null: all models, both classes."""

    tenant: str
    kind: QuotaKind
    value: Value
    project: str | None = None
    key: str | None = None
    model: str | None = None
    request_class: RequestClass | None = None


class LimitView(msgspec.Struct, frozen=True):
    """A limit of all requests in `scope_id`, which is a tenant, project or key.

    `used` is by live requests and for good, in the current window; null where each request counts alone.
    """

    id: int
    tenant: str
    scope: Scope
    scope_id: str
    kind: QuotaKind
    model: str | None
    request_class: RequestClass | None
    value: int
    used: int | None
    object: Literal["limit"] = "limit"


class LiftedLimit(msgspec.Struct, frozen=True):
    """There is no such limit now."""

    tenant: str
    kind: QuotaKind
    deleted: Literal[True] = True
    object: Literal["limit"] = "limit"


SHAPES: Final = (NewLimit, LimitView, LiftedLimit, Page[LimitView])


@router.put("", summary="Set a limit", **described(LimitView, body=NewLimit, errors=(404,)))
async def set_limit(request: Request, desk: Desk = desk_for(OperatorScope.LIMITS_WRITE)) -> Response:
    """Binds within 2 seconds; what was used stays used. May be repeated."""
    body = await read_body(request, NewLimit)
    target = Target(
        tenant=body.tenant,
        project=body.project,
        key=body.key,
        model=body.model,
        request_class=body.request_class,
    )
    use = await limit_administration.set_limit(desk.database, desk.actor, target, body.kind, body.value)
    assert use is not None
    return answered(_view(use))


@router.get("", summary="List a tenant's limits, oldest first", **described(Page[LimitView], errors=(404,)))
async def list_limits(
    tenant: OfTenant,
    limit: Limit = 20,
    after: AfterNumber = None,
    desk: Desk = desk_for(OperatorScope.LIMITS_READ),
) -> Response:
    """A page of those of the tenant, its projects and its keys, with what is used of each."""
    found = await limit_administration.page_of_limits(desk.database, tenant, limit=limit + 1, after=after)
    return answered(page_of([_view(use) for use in found], limit=limit))


@router.delete("", summary="Lift a limit", **described(LiftedLimit, errors=(404,)))
async def lift_limit(
    tenant: OfTenant,
    kind: QuotaKind,
    project: Named = None,
    key: Named = None,
    model: Named = None,
    request_class: RequestClass | None = None,
    desk: Desk = desk_for(OperatorScope.LIMITS_WRITE),
) -> Response:
    """Binds within 2 seconds; what was used stays used, should it come back. May be repeated."""
    target = Target(tenant=tenant, project=project, key=key, model=model, request_class=request_class)
    await limit_administration.set_limit(desk.database, desk.actor, target, kind, None)
    return answered(LiftedLimit(tenant=tenant, kind=kind))


def _view(use: LimitUse) -> LimitView:
    limit = use.limit
    return LimitView(
        id=limit.id,
        tenant=limit.tenant,
        scope=limit.scope,
        scope_id=limit.scope_id,
        kind=limit.kind,
        model=limit.model,
        request_class=limit.request_class,
        value=limit.value,
        used=use.used if limit.is_counted else None,
    )
