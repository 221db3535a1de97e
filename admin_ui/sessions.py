"""Who is asking: the session behind a request's cookie, and forms that are checked to be that person's own.

Every page depends on one of these. Knows cookies and forms; whether a session is live is the store's to say.
"""

import hashlib
import secrets
from typing import Annotated

from fastapi import Depends, Request, Response

from admin_ui.context import AdminContext, Context
from admin_ui.errors import FOREIGN_FORM, STALE_FORM, FormRefused, SignInNeeded
from admin_ui.forms import Form, read_form
from admin_ui.security import is_from_own_pages
from gateway.operators import service
from gateway.operators.service import OpenedSession, Session

CSRF_FIELD = "csrf"


def session_token(request: Request, context: AdminContext) -> str | None:
    """The secret in the browser's session cookie."""
    return request.cookies.get(context.cookie_name(request, "session"))


async def _visiting_session(request: Request, context: Context) -> Session:
    return await _session(request, context, is_visit=True)


async def _watching_session(request: Request, context: Context) -> Session:
    """For streams: a page left open overnight must not keep its session alive."""
    return await _session(request, context, is_visit=False)


async def _session(request: Request, context: AdminContext, *, is_visit: bool) -> Session:
    token = session_token(request, context)
    session = None
    if token is not None:
        session = await service.find_session(context.database, token, is_visit=is_visit)
    if session is None:
        raise SignInNeeded(_path_to_return_to(request))
    return session


def _path_to_return_to(request: Request) -> str | None:
    if request.method != "GET" or request.url.path == "/" or request.url.path.endswith("/live"):
        return None
    query = f"?{request.url.query}" if request.url.query else ""
    return request.url.path + query


SignedIn = Annotated[Session, Depends(_visiting_session)]
Watching = Annotated[Session, Depends(_watching_session)]


async def _own_form(request: Request, context: Context, session: SignedIn) -> Form:
    return await _checked_form(request, context, wanted=session.csrf_token)


async def _stranger_form(request: Request, context: Context) -> Form:
    key = request.cookies.get(context.cookie_name(request, "form"))
    return await _checked_form(request, context, wanted=None if key is None else stranger_csrf_token(key))


async def _checked_form(request: Request, context: AdminContext, *, wanted: str | None) -> Form:
    if not is_from_own_pages(request.headers, own_origin=context.own_origin(request)):
        raise FormRefused(FOREIGN_FORM)
    form = await read_form(request)
    given = form.get(CSRF_FIELD, "")
    if wanted is None or not secrets.compare_digest(given.encode(), wanted.encode()):
        raise FormRefused(STALE_FORM)
    return form


OwnForm = Annotated[Form, Depends(_own_form)]
StrangerForm = Annotated[Form, Depends(_stranger_form)]


def stranger_form_key(request: Request, context: AdminContext) -> str:
    """The secret that ties sign-in forms to one browser before there is a session; kept if it has one."""
    return request.cookies.get(context.cookie_name(request, "form")) or secrets.token_urlsafe(32)


def stranger_csrf_token(key: str) -> str:
    """The form token that belongs to a browser's form key."""
    return hashlib.sha256(b"form token of " + key.encode("utf-8", "surrogateescape")).hexdigest()


def keep_form_key(response: Response, request: Request, context: AdminContext, key: str) -> None:
    """Gives the browser its form key."""
    response.set_cookie(
        context.cookie_name(request, "form"),
        key,
        secure=context.is_secure(request),
        httponly=True,
        samesite="lax",
    )


def keep_session(response: Response, request: Request, context: AdminContext, opened: OpenedSession) -> None:
    """Gives the browser its session, until the session's absolute end."""
    response.set_cookie(
        context.cookie_name(request, "session"),
        opened.token,
        expires=opened.expires_at,
        secure=context.is_secure(request),
        httponly=True,
        samesite="lax",
    )


def drop_session(response: Response, request: Request, context: AdminContext) -> None:
    """Takes the session away from the browser."""
    response.delete_cookie(
        context.cookie_name(request, "session"), secure=context.is_secure(request), httponly=True
    )
