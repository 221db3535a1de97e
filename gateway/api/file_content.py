"""`GET /v1/files/{file_id}/content`: the bytes of a file, or a part of them, as they come from the store.

Raw ASGI: a client is seen to leave, one that reads too slowly has left, and one piece is in memory at a time.
"""

import logging
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from gateway.api.byte_range import Span, wanted_span
from gateway.api.error_response import internal_error
from gateway.api.exchange import Exchange
from gateway.api.headers import Headers
from gateway.api.services import Services, services_of
from gateway.errors import GatewayError, NotFound, RangeNotSatisfiable
from gateway.files.file import StoredFile
from gateway.files.ids import FileId
from gateway.files.store import BlobMissing
from gateway.keys.caller import Caller
from gateway.keys.scope import Scope as KeyScope

ROUTE: Final = "/v1/files/{file_id}/content"

logger = logging.getLogger(__name__)


class ContentEndpoint:
    """An ASGI application for the one route, behind the framework's router."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        services = services_of(scope)
        exchange = Exchange(
            scope, receive, send, write_timeout_seconds=services.settings.write_timeout_seconds
        )
        await exchange.carry(self._respond(services, exchange, scope))

    async def _respond(self, services: Services, exchange: Exchange, scope: Scope) -> None:
        try:
            caller = await services.keys.authenticate(exchange.context.authorization)
            caller.require(KeyScope.FILES)
            stored = await services.filing.find(caller, FileId(scope["path_params"]["file_id"]))
            exchange.watch()
            await _send(services, exchange, caller, stored, scope)
        except RangeNotSatisfiable as error:
            await exchange.send_error(error, headers=[(b"content-range", b"bytes */%d" % stored.num_bytes)])
        except Exception as error:
            await _fail(exchange, error)


async def _send(
    services: Services, exchange: Exchange, caller: Caller, stored: StoredFile, scope: Scope
) -> None:
    span = _asked_for(scope, stored)
    whole = span or Span(0, stored.num_bytes)
    pieces = services.filing.read(stored, start=whole.start, num_bytes=whole.num_bytes)
    async with aclosing(pieces):
        if scope["method"] == "HEAD" or whole.num_bytes == 0:
            await exchange.begin(_headers(stored, span), status=200 if span is None else 206)
            await exchange.stream(b"", more=False)
            return
        num_left = whole.num_bytes
        async for piece in pieces:
            if exchange.status is None:  # only now: the store may have failed
                await exchange.begin(_headers(stored, span), status=200 if span is None else 206)
            num_left -= len(piece)
            await exchange.stream(piece, more=num_left > 0)
    tenant = services.metrics.tenants.fold(caller.tenant_name)
    services.metrics.file_bytes.labels("out", tenant).inc(whole.num_bytes)


def _asked_for(scope: Scope, stored: StoredFile) -> Span | None:
    """The part that is wanted; where it is a part of another file than this one, the whole."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    if headers.get(b"if-range", _etag(stored)) != _etag(stored):
        return None
    return wanted_span(headers.get(b"range"), stored.num_bytes)


def _headers(stored: StoredFile, span: Span | None) -> Headers:
    num_bytes = stored.num_bytes if span is None else span.num_bytes
    headers: Headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % num_bytes),
        (b"accept-ranges", b"bytes"),
        (b"etag", _etag(stored).encode()),
        (b"content-disposition", _disposition(stored.filename)),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"private, no-cache"),
    ]
    if span is not None:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (span.start, span.end - 1, stored.num_bytes)))
    return headers


def _disposition(filename: str) -> bytes:
    """The name for whoever saves it, safe within a header."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "_" for c in filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}".encode()


def _etag(stored: StoredFile) -> str:
    return f'"{stored.sha256.hex()}"'


async def _fail(exchange: Exchange, error: Exception) -> None:
    """Tells the caller, unless the body has begun: then the server cuts it short, which tells as much."""
    if isinstance(error, BlobMissing):
        error = NotFound("What was in this file is gone: its place in the file store is empty.")
    if not isinstance(error, GatewayError):
        logger.error("unexpected error", exc_info=error, extra={"request_id": exchange.context.request_id})
        error = internal_error(exchange.context.request_id)
    if exchange.status is None:
        await exchange.send_error(error, headers=[])
