"""The Keys pages: issue a key, show its secret once, rotate it, revoke it."""

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from admin_ui.context import AdminContext, Context
from admin_ui.forms import FieldError, Form, parse_expiry, parse_name
from admin_ui.page import redirect, redirect_with_flash, show_page
from admin_ui.sessions import OwnForm, SignedIn
from gateway import administration, key_administration
from gateway.administration import TenantSummary
from gateway.key_administration import DEFAULT_OVERLAP
from gateway.keys.key import ApiKey, IssuedKey
from gateway.operators.service import Session
from gateway.tenants.errors import NoSuchThing
from gateway.tenants.ids import KeyId
from gateway.tenants.tenant import Tenant

router = APIRouter(prefix="/keys")

_NO_ERRORS = {"tenant": None, "name": None, "expires_on": None}
_EMPTY_FORM = {"tenant": "", "name": "", "expires_on": ""}


@router.get("")
async def list_page(request: Request, context: Context, session: SignedIn) -> Response:
    """All keys, or those of the tenant that the query names."""
    tenants = await administration.list_tenants(context.database)
    chosen = _chosen(tenants, request.query_params.get("tenant"))
    keys = await key_administration.list_keys(context.database, None if chosen is None else chosen.id)
    return show_page(
        request,
        context,
        session,
        "keys/list.html",
        keys=[_key_values(key, now=datetime.now(UTC)) for key in keys],
        tenant=chosen,
        has_tenants=bool(tenants),
    )


@router.get("/new")
async def new_page(request: Request, context: Context, session: SignedIn) -> Response:
    """The form for a new key; the query may choose its tenant."""
    form = {"tenant": request.query_params.get("tenant", "")}
    return await _form_page(request, context, session, form=form, errors={})


@router.post("")
async def issue(request: Request, context: Context, session: SignedIn, form: OwnForm) -> Response:
    """Issues a key and goes to the one page that shows its secret."""
    try:
        issued = await key_administration.issue_key(
            context.database,
            context.key_pepper,
            session.operator_name,
            _parse_tenant(form),
            name=parse_name(form, "name", what="key"),
            expires_at=parse_expiry(form, "expires_on", now=datetime.now(UTC)),
        )
    except FieldError as error:
        return await _form_page(request, context, session, form=form, errors={error.field: error.message})
    except NoSuchThing:
        errors = {"tenant": "This tenant is gone; choose another."}
        return await _form_page(request, context, session, form=form, errors=errors)
    return _reveal(context, session, issued)


@router.get("/{key_id}/issued")
async def issued_page(request: Request, context: Context, session: SignedIn, key_id: str) -> Response:
    """The secret with a line to try it, the first time; afterwards only the list."""
    secret = context.reveals.take(operator_id=session.operator_id, key_id=key_id)
    if secret is None:
        text = "A secret is shown once. If it was lost, rotate its key."
        return redirect_with_flash(request, context, "/keys", text)
    curl = curl_line(api_url=context.settings.admin.api_url, secret=secret, model=_any_model(context))
    return show_page(request, context, session, "keys/issued.html", secret=secret, curl=curl)


@router.get("/{key_id}/rotate")
async def rotate_page(request: Request, context: Context, session: SignedIn, key_id: str) -> Response:
    """Asks once more: the old secret ends, though not at once."""
    key = await _key(context, key_id)
    return show_page(
        request,
        context,
        session,
        "keys/rotate.html",
        key=key,
        overlap_hours=DEFAULT_OVERLAP // timedelta(hours=1),
        overlap_ends_at=key.overlap_ends_at(datetime.now(UTC)),
    )


@router.post("/{key_id}/rotate")
async def rotate(
    request: Request, context: Context, session: SignedIn, _form: OwnForm, key_id: str
) -> Response:
    """Gives the key a new secret and goes to the one page that shows it; the old one works on meanwhile."""
    issued = await key_administration.rotate_key(
        context.database, context.key_pepper, session.operator_name, KeyId(key_id)
    )
    return _reveal(context, session, issued)


@router.get("/{key_id}/revoke")
async def revoke_page(request: Request, context: Context, session: SignedIn, key_id: str) -> Response:
    """Asks once more: what depends on the key stops."""
    return show_page(request, context, session, "keys/revoke.html", key=await _key(context, key_id))


@router.post("/{key_id}/revoke")
async def revoke(
    request: Request, context: Context, session: SignedIn, _form: OwnForm, key_id: str
) -> Response:
    """Ends the key for good."""
    await key_administration.revoke_key(context.database, session.operator_name, KeyId(key_id))
    return redirect_with_flash(request, context, "/keys", "The key is revoked.")


def curl_line(*, api_url: str, secret: str, model: str) -> str:
    """A request that works as pasted into a shell."""
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    )
    return (
        f"curl {api_url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {secret}' \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(body)}"
    )


async def _key(context: AdminContext, key_id: str) -> ApiKey:
    keys = await key_administration.list_keys(context.database)
    key = next((key for key in keys if key.id == key_id), None)
    if key is None:
        raise NoSuchThing("There is no such key.")
    return key


def _reveal(context: AdminContext, session: Session, issued: IssuedKey) -> Response:
    """Leads to the page that shows a secret, once."""
    context.reveals.hold(operator_id=session.operator_id, key_id=issued.key.id, secret=issued.secret)
    return redirect(f"/keys/{issued.key.id}/issued")


def _key_values(key: ApiKey, *, now: datetime) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "tenant_name": key.tenant_name,
        "redacted_value": key.redacted_value,
        "last_used_at": key.last_used_at,
        "expires_at": key.expires_at,
        "state": key.state(now),
        "previous_redacted_value": key.previous_redacted_value,
        "overlap_ends_at": key.overlap_ends_at(now),
    }


def _parse_tenant(form: Form) -> str:
    if not form.get("tenant"):
        raise FieldError("tenant", "Choose the tenant that the key is for.")
    return form["tenant"]


def _chosen(tenants: Sequence[TenantSummary], tenant_id: str | None) -> Tenant | None:
    return next((summary.tenant for summary in tenants if summary.tenant.id == tenant_id), None)


def _any_model(context: AdminContext) -> str:
    """What an engine serves now; a word to replace while none answers."""
    models = [view.description.model for view in context.broadcaster.latest.engines if view.description]
    return models[0] if models else "MODEL"


async def _form_page(
    request: Request, context: AdminContext, session: Session, *, form: Form, errors: dict[str, str]
) -> Response:
    tenants = await administration.list_tenants(context.database)
    return show_page(
        request,
        context,
        session,
        "keys/new.html",
        status=422 if errors else 200,
        tenants=[summary.tenant for summary in tenants if summary.tenant.disabled_at is None],
        form=_EMPTY_FORM | dict(form),
        errors=_NO_ERRORS | errors,
    )
