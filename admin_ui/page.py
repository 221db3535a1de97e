"""One page as a response: the frame around every template, for a person who is signed in or not."""

from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse

from admin_ui.context import AdminContext
from admin_ui.flash import drop_flash, leave_flash, read_flash
from gateway.operators.service import Session


def show_page(
    request: Request,
    context: AdminContext,
    session: Session,
    template: str,
    *,
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """A page for an operator, with the message that the page before has left."""
    flash = read_flash(request, context)
    frame = {"operator_name": session.operator_name, "csrf": session.csrf_token, "flash": flash}
    response = HTMLResponse(context.renderer.render(template, frame | values), status_code=status)
    if flash is not None:
        drop_flash(response, request, context)
    return response


def redirect(path: str) -> RedirectResponse:
    """To a page of ours, with GET."""
    return RedirectResponse(path, status_code=303)


def redirect_with_flash(request: Request, context: AdminContext, path: str, text: str) -> RedirectResponse:
    """To a page of ours, which shows the message once."""
    response = redirect(path)
    leave_flash(response, request, context, text)
    return response
