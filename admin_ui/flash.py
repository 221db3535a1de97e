"""A message that outlives one redirect: what was just done, shown once on the next page.

It travels in a cookie of its own. It is text, is escaped where it is shown, and never holds a secret.
"""

from typing import Final
from urllib.parse import quote, unquote

from fastapi import Request, Response

from admin_ui.context import AdminContext

_SECONDS_KEPT: Final = 60
MAX_LENGTH: Final = 300


def leave_flash(response: Response, request: Request, context: AdminContext, text: str) -> None:
    """Leaves a message for the next page."""
    response.set_cookie(
        context.cookie_name(request, "flash"),
        quote(text[:MAX_LENGTH]),
        max_age=_SECONDS_KEPT,
        secure=context.is_secure(request),
        httponly=True,
        samesite="lax",
    )


def read_flash(request: Request, context: AdminContext) -> str | None:
    """The message that the page before has left."""
    value = request.cookies.get(context.cookie_name(request, "flash"))
    return None if value is None else unquote(value)[:MAX_LENGTH]


def drop_flash(response: Response, request: Request, context: AdminContext) -> None:
    """Takes the message away once it was shown."""
    response.delete_cookie(
        context.cookie_name(request, "flash"), secure=context.is_secure(request), httponly=True
    )
