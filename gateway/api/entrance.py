"""What a server calls: the inference routes at once, everything else through the framework.

The framework's layers and its search through all routes cost 30 us a request, and an inference endpoint needs
none of them: it reads, writes and renders its errors itself.
"""

from collections.abc import Mapping

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send


class Entrance:
    """An ASGI application. `posts` are the endpoints reached at once, by path; `framework` has all routes."""

    def __init__(self, framework: FastAPI, posts: Mapping[str, ASGIApp]) -> None:
        self.framework = framework
        self._posts = posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI connection."""
        endpoint = self._direct(scope) or self.framework
        await endpoint(scope, receive, send)

    def _direct(self, scope: Scope) -> ASGIApp | None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        return self._posts.get(scope["path"]) if is_post else None
