"""Puts the admin UI together: its parts, its routes, and how each foreseeable failure becomes a page.

`create_app` builds nothing that opens a connection; the lifespan does, and closes it again.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from admin_ui import login
from admin_ui.background import running
from admin_ui.context import AdminContext
from admin_ui.errors import FormRefused, SignInNeeded
from admin_ui.live import Broadcaster, LiveBoard, keep_publishing
from admin_ui.page import redirect
from admin_ui.pages import batches, keys, overview, tenants
from admin_ui.rendering import STATIC_FOLDER, Renderer
from admin_ui.reveals import Reveals
from admin_ui.security import SecurityHeaders, add_guards
from admin_ui.settings import AdminSettings
from admin_ui.streams import StreamCount
from gateway.db import Database
from gateway.engines.client import EngineAddress, EngineClient, Identity
from gateway.engines.directory import EngineDirectory
from gateway.errors import StoreUnavailable, UnstorableText
from gateway.operators.passwords import Passwords
from gateway.operators.throttle import LoginThrottle
from gateway.tenants.errors import AdministrationError, NoSuchThing

REPLICA_NAME = "admin-ui"
NUM_DATABASE_CONNECTIONS = 4
STATEMENT_TIMEOUT_MS = 2_000  # a page gives up before the store feels it

Handler = Callable[[Request, Exception], Awaitable[Response]]


def create_app(settings: AdminSettings) -> FastAPI:
    """The admin UI as an ASGI application. Its event streams end when `end_streams(app)` is called."""
    app = FastAPI(title="Sluice admin", lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.settings = settings
    app.mount("/static", StaticFiles(directory=STATIC_FOLDER), name="static")
    app.add_api_route("/healthz", _healthz)
    for router in (login.router, overview.router, tenants.router, keys.router, batches.router):
        app.include_router(router)
    for kind, handler in _ERROR_PAGES.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(SecurityHeaders)
    return app


def end_streams(app: FastAPI) -> None:
    """Ends every open event stream, so that a server which waits for its responses can stop."""
    context: AdminContext | None = getattr(app.state, "context", None)
    if context is not None:
        context.broadcaster.close()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: AdminSettings = app.state.settings
    database = Database.connect(
        settings.database_url,
        application_name="sluice-admin",
        pool_size=NUM_DATABASE_CONNECTIONS,
        statement_timeout_ms=STATEMENT_TIMEOUT_MS,
    )
    engines = EngineDirectory(settings.gateway.engines, _client_maker(settings))
    await engines.start()
    board = LiveBoard(lambda: engines.clients)
    broadcaster = Broadcaster(board.observe())
    app.state.context = _context(settings, database, broadcaster)
    try:
        async with running(keep_publishing(board, broadcaster)):
            yield
    finally:
        broadcaster.close()
        await engines.stop()
        await database.close()


def _context(settings: AdminSettings, database: Database, broadcaster: Broadcaster) -> AdminContext:
    return AdminContext(
        settings=settings,
        database=database,
        broadcaster=broadcaster,
        renderer=Renderer(),
        passwords=Passwords(),
        throttle=LoginThrottle(),
        streams=StreamCount(),
        reveals=Reveals(),
    )


def _client_maker(settings: AdminSettings) -> Callable[[EngineAddress], EngineClient]:
    identity = Identity(
        replica=REPLICA_NAME,
        epoch=time.time_ns(),  # it submits nothing, so nobody settles for it: unique is enough
        shared_secret=settings.secrets.engine_shared,
        observer=True,
    )
    return lambda address: EngineClient(address, identity)


async def _healthz() -> PlainTextResponse:
    """Whether this process answers. Says nothing of the database: restarting this would not mend that."""
    return PlainTextResponse("ok\n")


async def _sign_in_first(_: Request, error: Exception) -> Response:
    assert isinstance(error, SignInNeeded)
    return redirect("/login" if error.wanted is None else f"/login?next={quote(error.wanted, safe='')}")


async def _form_refused(request: Request, error: Exception) -> Response:
    return _error_page(request, status=403, title="Not accepted", message=str(error))


async def _not_found(request: Request, error: Exception) -> Response:
    return _error_page(request, status=404, title="Not found", message=str(error))


async def _not_done(request: Request, error: Exception) -> Response:
    return _error_page(request, status=409, title="Nothing was changed", message=str(error))


async def _store_away(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreUnavailable)
    return _error_page(
        request, status=503, title="The database does not answer", message=f"{error.message} Try again soon."
    )


async def _unstorable(request: Request, error: Exception) -> Response:
    return _error_page(request, status=400, title="This cannot be done", message=str(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _error_page(request, status=404, title="Not found", message="There is no such page.")
    title = "This cannot be done"
    return _error_page(request, status=error.status_code, title=title, message=f"{error.detail}")


async def _broken(request: Request, _: Exception) -> Response:
    """The error itself goes to the log only. Starlette answers this one outside of all middleware."""
    message = "Something went wrong here. It has been logged; try again."
    response = _error_page(request, status=500, title="Unexpected error", message=message)
    add_guards(response.headers, path=request.url.path)
    return response


def _error_page(request: Request, *, status: int, title: str, message: str) -> Response:
    context: AdminContext = request.app.state.context
    page = context.renderer.render("error.html", {"title": title, "message": message, "flash": None})
    return HTMLResponse(page, status_code=status)


_ERROR_PAGES: dict[type[Exception], Handler] = {
    SignInNeeded: _sign_in_first,
    FormRefused: _form_refused,
    NoSuchThing: _not_found,
    AdministrationError: _not_done,
    StoreUnavailable: _store_away,
    UnstorableText: _unstorable,
    HTTPException: _http_error,
    Exception: _broken,
}
