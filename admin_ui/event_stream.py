"""Server-sent events: a page's live part, drawn anew every second, until its session ends or the server does.

Knows how a stream begins, goes on and ends; what is drawn is the page's.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from admin_ui.context import AdminContext, Context
from admin_ui.live import Snapshot
from admin_ui.sessions import Watching, session_token
from gateway.errors import StoreUnavailable
from gateway.operators import service
from gateway.tenants.errors import NoSuchThing

SESSION_CHECKED_EVERY: Final = 30  # snapshots, so about half a minute
RECONNECT_AFTER_MS: Final = 2_000

Draw = Callable[[Snapshot], Awaitable[str]]


async def _stream_token(request: Request, context: Context, _session: Watching) -> str:
    token = session_token(request, context)
    assert token is not None
    return token


StreamToken = Annotated[str, Depends(_stream_token)]


def event_stream(context: AdminContext, token: str, draw: Draw) -> Response:
    """What `draw` makes of each picture of the engines, one a second; 429 where the browser has too many."""
    if context.streams.is_full(token):
        return PlainTextResponse("Too many live pages are open in this browser.", status_code=429)
    return StreamingResponse(
        _events(context, token, draw),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _events(context: AdminContext, token: str, draw: Draw) -> AsyncIterator[str]:
    with context.streams.opened(token):
        yield f"retry: {RECONNECT_AFTER_MS}\n\n"
        num_seen = 0
        async for snapshot in context.broadcaster.follow():
            if num_seen % SESSION_CHECKED_EVERY == 0 and not await _may_go_on(context, token):
                yield event("signed-out", "")
                return
            num_seen += 1
            try:
                yield event("drawn", await draw(snapshot))
            except StoreUnavailable:  # the page says that it is stale, until there is something to draw
                continue
            except NoSuchThing:  # what it showed is gone
                return


async def _may_go_on(context: AdminContext, token: str) -> bool:
    try:
        return await service.find_session(context.database, token, is_visit=False) is not None
    except StoreUnavailable:  # the engines' figures do not come from there: this is when they are needed
        return True


def event(name: str, text: str) -> str:
    """One server-sent event; each line of the text becomes a data line."""
    data = "\n".join(f"data: {line}" for line in text.splitlines() or [""])
    return f"event: {name}\n{data}\n\n"
