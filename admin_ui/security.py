"""Guards that every response and every form pass: headers, where a form came from, where a redirect may go.

Knows HTTP headers; knows no session and no page.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)

_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not no-referrer: with it browsers send `Origin: null` with every form.
    "Referrer-Policy": "same-origin",
}


class SecurityHeaders:
    """Adds the guarding headers to every response; pages are never stored, static files are revalidated."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, and its response back with the headers added."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_guards(MutableHeaders(scope=message), path=scope["path"])
            await send(message)

        await self._app(scope, receive, send_guarded)


def add_guards(headers: MutableHeaders, *, path: str) -> None:
    """Adds the guarding headers to those of a response to a request for `path`."""
    headers.update(_HEADERS)
    headers["Cache-Control"] = "no-cache" if path.startswith("/static/") else "no-store"


def is_from_own_pages(headers: Mapping[str, str], *, own_origin: str) -> bool:
    """Whether a POST was sent by a page of `own_origin`. Browsers always say so in one of the two headers."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return False
    return site in (None, "same-origin", "none") and origin in (None, own_origin)


def origin_of(url: str) -> str:
    """Scheme, host and port of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def safe_return_path(wanted: str | None) -> str:
    """A path of these pages to go to after signing in; anything else becomes the first page."""
    if wanted is None or not wanted.startswith("/") or wanted.startswith("//") or len(wanted) > 512:
        return "/"
    is_plain = all(" " < character <= "~" and character != "\\" for character in wanted)
    return wanted if is_plain else "/"
