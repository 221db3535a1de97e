"""The lines of a batch's files: what became of one item, as the wire has it. Pure.

A body that is JSON already goes in as it is: it may be large, and is not read again.
"""

from typing import Final

import msgspec


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class _Line(msgspec.Struct, frozen=True):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


class _ServerError(msgspec.Struct, frozen=True):
    message: str
    type: str = "server_error"
    param: None = None
    code: str = "server_error"


_encoder: Final = msgspec.json.Encoder()


def answered(request_id: str, custom_id: str, *, http_request_id: str, status: int, body: bytes) -> str:
    """The line, without its end, of an item that got a response; `body` is JSON on one line."""
    response = _Response(status, http_request_id, msgspec.Raw(body))
    return _encoded(_Line(request_id, custom_id, response, None))


def unanswered(request_id: str, custom_id: str, *, code: str, message: str) -> str:
    """The line, without its end, of an item that never ran to an answer."""
    return _encoded(_Line(request_id, custom_id, None, _Error(code, message)))


def server_error_body(message: str) -> bytes:
    """The body of a response that says that the fault is ours."""
    return _encoder.encode({"error": _ServerError(message)})


def _encoded(line: _Line) -> str:
    return _encoder.encode(line).decode()
