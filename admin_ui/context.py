"""What every page may use, built once by `app.py` and handed to each request."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from admin_ui.live import Broadcaster
from admin_ui.rendering import Renderer
from admin_ui.reveals import Reveals
from admin_ui.security import origin_of
from admin_ui.settings import AdminSettings
from admin_ui.streams import StreamCount
from gateway.db import Database
from gateway.operators.passwords import Passwords
from gateway.operators.throttle import LoginThrottle


@dataclass(frozen=True, kw_only=True)
class AdminContext:
    """The process's parts, as the pages see them."""

    settings: AdminSettings
    database: Database
    broadcaster: Broadcaster
    renderer: Renderer
    passwords: Passwords
    throttle: LoginThrottle
    streams: StreamCount
    reveals: Reveals

    @property
    def key_pepper(self) -> bytes:
        """What new keys are hashed with."""
        return bytes.fromhex(self.settings.secrets.key_pepper)

    def own_origin(self, request: Request) -> str:
        """The origin under which the browser sees these pages."""
        public_url = self.settings.admin.public_url
        if public_url is not None:
            return origin_of(public_url)
        return f"{request.url.scheme}://{request.headers.get('host', '')}"

    def is_secure(self, request: Request) -> bool:
        """Whether the browser reaches these pages over https."""
        return self.own_origin(request).startswith("https://")

    def cookie_name(self, request: Request, purpose: str) -> str:
        """Cookies know no port, so the name does: two servers on one host must not share a session."""
        prefix = "__Host-" if self.is_secure(request) else ""
        return f"{prefix}sluice_{purpose}_{self.settings.admin.port}"


def _context(request: Request) -> AdminContext:
    context = request.app.state.context
    assert isinstance(context, AdminContext)
    return context


Context = Annotated[AdminContext, Depends(_context)]
