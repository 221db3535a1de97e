"""The Tenants pages: who shares the model, their limits, and whether they may use it at all."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from admin_ui.context import AdminContext, Context
from admin_ui.forms import FieldError, Form, parse_limit, parse_name
from admin_ui.page import redirect_with_flash, show_page
from admin_ui.sessions import OwnForm, SignedIn
from gateway import administration
from gateway.operators.service import Session
from gateway.quotas.limits import TenantLimits
from gateway.tenants.errors import AlreadyExists

router = APIRouter(prefix="/tenants")

_NO_ERRORS = {"name": None, "concurrent_requests": None, "tokens_per_minute": None}
_EMPTY_FORM = {"name": "", "concurrent_requests": "", "tokens_per_minute": ""}


@router.get("")
async def list_page(request: Request, context: Context, session: SignedIn) -> Response:
    """All tenants with their limits and what they use now."""
    tenants = await administration.list_tenants(context.database)
    return show_page(request, context, session, "tenants/list.html", tenants=tenants)


@router.get("/new")
async def new_page(request: Request, context: Context, session: SignedIn) -> Response:
    """The form for a new tenant."""
    return show_page(request, context, session, "tenants/new.html", form=_EMPTY_FORM, errors=_NO_ERRORS)


@router.post("")
async def create(request: Request, context: Context, session: SignedIn, form: OwnForm) -> Response:
    """Creates a tenant and goes to its page."""
    try:
        name, limits = parse_name(form, "name", what="tenant"), _parse_limits(form)
        created = await administration.create_tenant(
            context.database, session.operator_name, name, limits=limits
        )
    except FieldError as error:
        return _new_again(request, context, session, form, {error.field: error.message})
    except AlreadyExists:
        return _new_again(
            request, context, session, form, {"name": "There is already a tenant of this name."}
        )
    return redirect_with_flash(request, context, f"/tenants/{created.id}", f"Tenant {name} is created.")


@router.get("/{tenant_id}")
async def detail_page(request: Request, context: Context, session: SignedIn, tenant_id: str) -> Response:
    """One tenant: use, limits, and the switch."""
    return await _detail(request, context, session, tenant_id, form=None, errors={})


@router.post("/{tenant_id}/limits")
async def set_limits(
    request: Request, context: Context, session: SignedIn, form: OwnForm, tenant_id: str
) -> Response:
    """Changes what the tenant may take, from the next request on."""
    try:
        limits = _parse_limits(form)
    except FieldError as error:
        errors = {error.field: error.message}
        return await _detail(request, context, session, tenant_id, form=form, errors=errors)
    await administration.set_limits(context.database, session.operator_name, tenant_id, limits)
    return redirect_with_flash(request, context, f"/tenants/{tenant_id}", "The limits are saved.")


@router.post("/{tenant_id}/disable")
async def disable(
    request: Request, context: Context, session: SignedIn, _form: OwnForm, tenant_id: str
) -> Response:
    """Stops all keys of the tenant; nothing is deleted."""
    await _set_enabled(context, session, tenant_id, is_enabled=False)
    return redirect_with_flash(request, context, f"/tenants/{tenant_id}", "The tenant is disabled.")


@router.post("/{tenant_id}/enable")
async def enable(
    request: Request, context: Context, session: SignedIn, _form: OwnForm, tenant_id: str
) -> Response:
    """Lets the tenant's keys work again."""
    await _set_enabled(context, session, tenant_id, is_enabled=True)
    return redirect_with_flash(request, context, f"/tenants/{tenant_id}", "The tenant is enabled.")


def _parse_limits(form: Form) -> TenantLimits:
    return TenantLimits(
        concurrent_requests=parse_limit(form, "concurrent_requests"),
        tokens_per_minute=parse_limit(form, "tokens_per_minute"),
    )


def _new_again(
    request: Request, context: AdminContext, session: Session, form: Form, errors: dict[str, str]
) -> Response:
    """The form with what was typed, and what is wrong with it."""
    return show_page(
        request,
        context,
        session,
        "tenants/new.html",
        status=422,
        form=_EMPTY_FORM | dict(form),
        errors=_NO_ERRORS | errors,
    )


async def _detail(
    request: Request,
    context: AdminContext,
    session: Session,
    tenant_id: str,
    *,
    form: Form | None,
    errors: dict[str, str],
) -> Response:
    summary = await administration.get_tenant(context.database, tenant_id)
    return show_page(
        request,
        context,
        session,
        "tenants/detail.html",
        status=422 if errors else 200,
        tenant=summary.tenant,
        summary=summary,
        form=_stored_limits(summary.limits) if form is None else _EMPTY_FORM | dict(form),
        errors=_NO_ERRORS | errors,
    )


def _stored_limits(limits: TenantLimits) -> dict[str, str]:
    values = {
        "concurrent_requests": limits.concurrent_requests,
        "tokens_per_minute": limits.tokens_per_minute,
    }
    return {field: "" if value is None else str(value) for field, value in values.items()}


async def _set_enabled(context: AdminContext, session: Session, tenant_id: str, *, is_enabled: bool) -> None:
    await administration.set_tenant_enabled(
        context.database, session.operator_name, tenant_id, enabled=is_enabled
    )
