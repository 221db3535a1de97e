"""A server's files and batches as a client sees them: it runs nothing, a test says how batches stand."""

import asyncio
import json
import re
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

KEY = "sk-live-of-the-tests"


class BatchServer:
    """What it was sent, and what it says: an ASGI application."""

    def __init__(self) -> None:
        self.stands: list[dict[str, Any]] = [batch()]  # what looks show, one after the other; the last stays
        self.contents: dict[str, Response] = {}  # of files, by id
        self.headers: dict[str, str] = {}  # of a look
        self.refusals: dict[str, list[Response]] = {}  # what the next such requests are answered with instead
        self.asked: list[str] = []  # "GET /v1/batches/batch_1", …
        self.is_asked = asyncio.Event()
        self.uploads: list[bytes] = []
        self.filenames: list[str] = []
        self.orders: list[dict[str, Any]] = []
        self.order_names: list[str] = []  # idempotency keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            await (await self._answer(request, await request.body()))(scope, receive, send)
        else:
            await Starlette()(scope, receive, send)  # its beginning and its end

    async def _answer(self, request: Request, body: bytes) -> Response:
        asked = f"{request.method} {request.url.path}"
        self.asked.append(asked)
        self.is_asked.set()
        if asked == "POST /v1/batches":
            self.order_names.append(request.headers["idempotency-key"])
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return refusal(401, "Incorrect API key provided: sk-…ests.")
        if self.refusals.get(asked):
            return self.refusals[asked].pop(0)
        return self._done(asked, body)

    def _done(self, asked: str, body: bytes) -> Response:
        match asked.split("/v1/")[1].split("/"):
            case ["files"]:
                assert _part(body, "purpose") == b"batch"
                self.uploads.append(_part(body, "file"))
                self.filenames += re.findall(r'filename="([^"]*)"', body.decode())
                return JSONResponse({"id": "file-1", "object": "file"})
            case ["files", file, "content"]:
                return self.contents[file]
            case ["batches"] if asked.startswith("POST"):
                self.orders.append(json.loads(body))
                return JSONResponse(self.stands[0])
            case ["batches"]:
                return JSONResponse({"object": "list", "data": self.stands, "has_more": False})
            case ["batches", "batch_1", *_]:
                stand = self.stands.pop(0) if len(self.stands) > 1 else self.stands[0]
                return JSONResponse(stand, headers=self.headers)
            case _:
                return refusal(404, "There is no such batch.")


def batch(status: str = "in_progress", **fields: Any) -> dict[str, Any]:
    """The wire's object."""
    return {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "errors": None,
        "status": status,
        "output_file_id": None,
        "error_file_id": None,
        "created_at": 1_764_400_000,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        **fields,
    }


def counts(completed: int, failed: int = 0, *, total: int = 4) -> dict[str, int]:
    return {"total": total, "completed": completed, "failed": failed}


def refusal(status: int, message: str) -> Response:
    """An error as OpenAI's servers word it."""
    return JSONResponse({"error": {"message": message, "type": "t", "code": None, "param": None}}, status)


def _part(body: bytes, name: str) -> bytes:
    """A field of a multipart body."""
    boundary = body[: body.index(b"\r\n")]
    for part in body.split(boundary):
        head, _, content = part.partition(b"\r\n\r\n")
        if re.search(rb'name="%s"' % name.encode(), head):
            return content.removesuffix(b"\r\n")
    raise AssertionError(f"there is no field {name}")
