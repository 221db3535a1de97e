"""The one place where errors become HTTP: a status, a few fields, and when to try again."""

from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.context import context_of
from gateway.api.headers import Headers, limit_headers, retry_headers
from gateway.api.middleware import common_headers
from gateway.errors import GatewayError, InternalError, InvalidApiKey, InvalidRequest, LimitReached, NotFound
from gateway.rendering import error_body


def error_headers(error: GatewayError) -> Headers:
    """The headers that an error's response has beside the common ones."""
    headers = retry_headers(retry_after_seconds=error.retry_after_seconds, should_retry=error.should_retry)
    if isinstance(error, LimitReached) and error.standing is not None:
        headers += limit_headers(error.limit_type, error.standing)
    if isinstance(error, InvalidApiKey):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def internal_error(request_id: str) -> InternalError:
    """What a caller is told of an error that is ours: nothing but how to ask about it."""
    return InternalError(f"The server had an error. Please report the request id {request_id}.")


async def render_gateway_error(_: Request, error: Exception) -> Response:
    """The response of a foreseeable failure."""
    assert isinstance(error, GatewayError)
    return _response(error)


async def render_http_error(request: Request, error: Exception) -> Response:
    """The response where no route, or no method of it, matches."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return _response(
            NotFound(f"Unknown request URL: {request.method} {request.url.path}.", code="unknown_url")
        )
    phrase = HTTPStatus(error.status_code).phrase
    return _response(
        InvalidRequest(f"{phrase}: {request.method} {request.url.path}."),
        status=error.status_code,
        extra=dict(error.headers or {}),
    )


async def render_unexpected_error(request: Request, _: Exception) -> Response:
    """The response of a bug. It is made outside the middleware, so it brings the common headers itself."""
    context = context_of(request.scope)
    response = _response(internal_error(context.request_id))
    response.raw_headers.extend(common_headers(context))
    return response


def _response(
    error: GatewayError, *, status: int | None = None, extra: dict[str, Any] | None = None
) -> Response:
    response = Response(
        error_body(error), status_code=status or error.status, media_type="application/json", headers=extra
    )
    response.raw_headers.extend(error_headers(error))
    return response
