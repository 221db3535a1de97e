"""All routes in one ASGI application. What they need comes with the lifespan's state (`Services`)."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.api import batches, file_content, file_upload, files, health, models
from gateway.api.admin.failures import render_bad_parameter, render_refused_change
from gateway.api.admin.router import router as management
from gateway.api.docs import add_docs
from gateway.api.entrance import Entrance
from gateway.api.error_response import render_gateway_error, render_http_error, render_unexpected_error
from gateway.api.file_content import ContentEndpoint
from gateway.api.file_upload import UploadEndpoint
from gateway.api.inference import CHAT, COMPLETIONS, InferenceEndpoint
from gateway.api.middleware import CommonHeaders
from gateway.errors import GatewayError
from gateway.tenants.errors import AdministrationError

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any]]]


def build_application(lifespan: Lifespan) -> Entrance:
    """The application; `lifespan` yields a mapping with the Services under `STATE_KEY`."""
    app = FastAPI(
        title="Sluice",
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,  # a redirect would name the scheme and host that a proxy in front hides
        middleware=[Middleware(CommonHeaders)],
        exception_handlers={
            GatewayError: render_gateway_error,
            AdministrationError: render_refused_change,
            RequestValidationError: render_bad_parameter,
            HTTPException: render_http_error,
            Exception: render_unexpected_error,
        },
    )
    posts: dict[str, ASGIApp] = {dialect.route: InferenceEndpoint(dialect) for dialect in (CHAT, COMPLETIONS)}
    posts[file_upload.ROUTE] = UploadEndpoint()
    for path, endpoint in posts.items():
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))  # for lists of routes, and 405
    app.router.routes.append(Route(file_content.ROUTE, ContentEndpoint(), methods=["GET"]))
    app.include_router(models.router)
    app.include_router(files.router)
    app.include_router(batches.router)
    app.include_router(management)
    app.include_router(health.router)
    add_docs(app)
    return Entrance(app, {path: CommonHeaders(endpoint) for path, endpoint in posts.items()})
