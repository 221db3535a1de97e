"""Signing in and out, and the one-time link of the first sign-in. The only pages without a session."""

import math

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from admin_ui import formatting
from admin_ui.context import AdminContext, Context
from admin_ui.flash import drop_flash, read_flash
from admin_ui.page import redirect, redirect_with_flash
from admin_ui.security import safe_return_path
from admin_ui.sessions import (
    OwnForm,
    SignedIn,
    StrangerForm,
    drop_session,
    keep_form_key,
    keep_session,
    session_token,
    stranger_csrf_token,
    stranger_form_key,
)
from gateway.operators import service
from gateway.operators.policy import MIN_PASSWORD_LENGTH, NameRefused, PasswordRefused
from gateway.operators.service import InviteRefused, SignInRefused

router = APIRouter()


@router.get("/login")
async def login_page(request: Request, context: Context) -> Response:
    """The sign-in form. `next` is the page to return to."""
    wanted = request.query_params.get("next")
    return _show(request, context, "login.html", return_to=safe_return_path(wanted))


@router.post("/login")
async def login(request: Request, context: Context, form: StrangerForm) -> Response:
    """Opens a new session, or says in one sentence why not."""
    name, return_to = form.get("name", ""), safe_return_path(form.get("next"))
    account, address = name.strip().lower()[:64], _address(request)
    wait = context.throttle.begin(account=account, address=address)
    if wait > 0:
        return _too_many(request, context, name=name, return_to=return_to, wait=wait)
    try:
        opened = await service.sign_in(
            context.database,
            context.passwords,
            name=name,
            password=form.get("password", ""),
            replaces=session_token(request, context),
        )
    except SignInRefused as error:
        return _show(
            request, context, "login.html", status=401, name=name, return_to=return_to, error=str(error)
        )
    context.throttle.succeed(account=account, address=address)
    response = redirect(return_to)
    keep_session(response, request, context, opened)
    return response


@router.post("/logout")
async def logout(request: Request, context: Context, _session: SignedIn, _form: OwnForm) -> Response:
    """Ends the session, in the store and in the browser."""
    token = session_token(request, context)
    if token is not None:
        await service.sign_out(context.database, token)
    response = redirect_with_flash(request, context, "/login", "You are signed out.")
    drop_session(response, request, context)
    return response


@router.get("/setup/{token}")
async def setup_page(request: Request, context: Context, token: str) -> Response:
    """The form behind a one-time link."""
    if not await service.is_invite_open(context.database, token):
        return _link_is_dead(request, context)
    return _show(request, context, "setup.html")


@router.post("/setup/{token}")
async def setup(request: Request, context: Context, token: str, form: StrangerForm) -> Response:
    """Makes the operator and signs them in; the link is used up then and only then."""
    name = form.get("name", "")
    try:
        opened = await service.accept_invite(
            context.database, context.passwords, token=token, name=name, password=form.get("password", "")
        )
    except InviteRefused:
        return _link_is_dead(request, context)
    except NameRefused as error:
        return _show(request, context, "setup.html", status=422, name=name, name_error=str(error))
    except PasswordRefused as error:
        return _show(request, context, "setup.html", status=422, name=name, password_error=str(error))
    response = redirect_with_flash(request, context, "/", "Welcome. Create a tenant to hand out keys.")
    keep_session(response, request, context, opened)
    return response


def _too_many(request: Request, context: AdminContext, *, name: str, return_to: str, wait: float) -> Response:
    seconds = math.ceil(wait)
    error = f"Too many attempts. Try again in {formatting.duration(seconds)}."
    response = _show(request, context, "login.html", status=429, name=name, return_to=return_to, error=error)
    response.headers["Retry-After"] = str(seconds)
    return response


def _link_is_dead(request: Request, context: AdminContext) -> Response:
    return _show(request, context, "setup_dead.html", status=410)


def _show(
    request: Request, context: AdminContext, template: str, *, status: int = 200, **values: str
) -> HTMLResponse:
    """A page for a stranger, whose form is tied to this browser."""
    key, flash = stranger_form_key(request, context), read_flash(request, context)
    frame = {
        "csrf": stranger_csrf_token(key),
        "name": "",
        "error": None,
        "name_error": None,
        "password_error": None,
        "min_password_length": MIN_PASSWORD_LENGTH,
        "flash": flash,
    }
    response = HTMLResponse(context.renderer.render(template, frame | values), status_code=status)
    keep_form_key(response, request, context, key)
    if flash is not None:
        drop_flash(response, request, context)
    return response


def _address(request: Request) -> str:
    return "unknown" if request.client is None else request.client.host
