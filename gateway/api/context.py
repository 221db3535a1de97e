"""Who a request is in logs and headers: ids taken from the caller or made, and when it arrived."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.logs import without_keys

_TRACEPARENT: Final = re.compile(rb"^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_REQUEST_ID: Final = re.compile(rb"^[A-Za-z0-9._:-]{1,128}$")
_STATE_KEY: Final = "request_context"

Scope = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RequestContext:
    """`arrived_at` is the loop's time. `read_timeout_seconds` is how long the client waits."""

    trace_id: str
    request_id: str
    arrived_at: float
    authorization: str | None
    read_timeout_seconds: float | None


def make_context(scope: Scope, *, now: float) -> RequestContext:
    """The context of a request; ids that are malformed, or look like a key, are replaced."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    given = _request_id(headers.get(b"x-request-id", b""))
    trace = _TRACEPARENT.match(headers.get(b"traceparent", b""))
    made = secrets.token_hex(16)
    request_id = given or f"req_{made}"
    authorization = headers.get(b"authorization")
    return RequestContext(
        trace_id=trace[1].decode() if trace else (request_id if given else made),
        request_id=request_id,
        arrived_at=now,
        authorization=None if authorization is None else authorization.decode("latin-1"),
        read_timeout_seconds=_positive(headers.get(b"x-stainless-read-timeout")),
    )


def keep_context(scope: Scope, context: RequestContext) -> None:
    """Leaves the context where `context_of` finds it."""
    scope["state"][_STATE_KEY] = context


def context_of(scope: Scope) -> RequestContext:
    """The context that the middleware made."""
    context = scope["state"][_STATE_KEY]
    assert isinstance(context, RequestContext)
    return context


def _request_id(value: bytes) -> str | None:
    """The caller's own id, if it can go into every log line: no control characters, and no key by mistake."""
    if _REQUEST_ID.match(value) is None:
        return None
    given = value.decode()
    return given if without_keys(given) == given else None


def _positive(value: bytes | None) -> float | None:
    try:
        seconds = float(value or b"0")
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None
