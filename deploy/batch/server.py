"""The server's files and batches, over HTTP. Effects only; what comes back is read in `wire.py`.

Failure
├── Refused        it will not do this, however often it is asked
└── Unreachable    it cannot be asked right now, or cannot do it right now: ask again later
"""

import asyncio
import io
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import aiohttp
import msgspec

from deploy.batch.bytes_bar import Tell
from deploy.batch.source import Source
from deploy.batch.wire import Batch, Sighting
from deploy.failure import Failure

CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 60.0  # a server that says nothing for so long is gone
ESTIMATED_END: Final = "x-sluice-batch-estimated-completion"
PAUSES_SECONDS: Final = (0.5, 1.0, 2.0)
PURPOSE: Final = "batch"
LONGEST_MESSAGE: Final = 500
_CHUNK_BYTES: Final = 256 * 1024
_WORTH_ANOTHER_TRY: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class Refused(Failure):
    """The server's reason, in one line."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(Failure):
    """What the server, or the way to it, said last."""


class Server:
    """An OpenAI-compatible server, for one key; use `connected`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def upload(self, source: Source, tell: Tell) -> str:
        """Sends a file piece by piece; its id."""
        with _Told(source.file, tell) as content:
            form = aiohttp.FormData()
            form.add_field("purpose", PURPOSE)
            form.add_field("file", content, filename=source.name, content_type="application/jsonl")
            async with self._asking("POST", "/v1/files", data=form) as response:
                return str((await self._object(response))["id"])

    async def submit(
        self, input_file_id: str, *, endpoint: str, window: str, metadata: Mapping[str, str]
    ) -> Sighting:
        """Makes a batch of an uploaded file, however often the way to the server breaks off meanwhile."""
        order = {"input_file_id": input_file_id, "endpoint": endpoint, "completion_window": window}
        body = order | ({"metadata": dict(metadata)} if metadata else {})
        once = {"Idempotency-Key": str(uuid.uuid4())}  # one that comes twice is carried out once
        for pause_seconds in PAUSES_SECONDS:
            with suppress(Unreachable):
                return await self._batch("POST", "/v1/batches", json=body, headers=once)
            await asyncio.sleep(pause_seconds)
        return await self._batch("POST", "/v1/batches", json=body, headers=once)

    async def forget(self, file_id: str) -> None:
        """Deletes an uploaded file; one that stays does no harm."""
        with suppress(Refused, Unreachable):
            async with self._asking("DELETE", f"/v1/files/{_quoted(file_id)}") as response:
                await self._object(response)

    async def batch(self, batch_id: str) -> Sighting:
        """A batch as it stands."""
        return await self._batch("GET", f"/v1/batches/{_quoted(batch_id)}")

    async def cancel(self, batch_id: str) -> Sighting:
        """Ends a batch. One that has ended, or is about to, stays as it is."""
        path = f"/v1/batches/{_quoted(batch_id)}"
        try:
            return await self._batch("POST", f"{path}/cancel")
        except Refused as refused:
            if refused.status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT):
                raise
            seen = await self._batch("GET", path)
            if not seen.batch.is_over:
                raise
            return seen

    async def batches(self, *, limit: int) -> Sequence[Sighting]:
        """The newest batches of the key's project."""
        async with self._asking("GET", f"/v1/batches?limit={limit}") as response:
            listed = await self._object(response)
            return [self._sighting(each, response) for each in listed.get("data", [])]

    @asynccontextmanager
    async def content(self, file_id: str) -> AsyncIterator["Content"]:
        """What is in a file. Raises Unreachable where it breaks off."""
        async with self._asking("GET", f"/v1/files/{_quoted(file_id)}/content") as response:
            yield Content(response)

    async def _batch(self, method: str, path: str, **options: Any) -> Sighting:
        async with self._asking(method, path, **options) as response:
            return self._sighting(await self._object(response), response)

    @asynccontextmanager
    async def _asking(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request and its answer's head; raises Refused or Unreachable."""
        try:
            async with self._session.request(method, f"{self._url}{path}", **options) as response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise _refusal(response.status, await response.read(), self._url)
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise Unreachable(
                f"nothing answers at {self._url}: start a server there, or name one with --url"
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"the connection to {self._url} was lost") from error

    async def _object(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        try:
            return msgspec.convert(msgspec.json.decode(await response.read()), dict[str, Any])
        except msgspec.MsgspecError as error:
            raise self._not_ours(response) from error

    def _sighting(self, body: dict[str, Any], response: aiohttp.ClientResponse) -> Sighting:
        try:
            batch = msgspec.convert(body, Batch)
        except msgspec.ValidationError as error:
            raise self._not_ours(response) from error
        return Sighting(batch=batch, body=body, estimated_end=_moment(response.headers.get(ESTIMATED_END)))

    def _not_ours(self, response: aiohttp.ClientResponse) -> Failure:
        return Failure(f"{self._url}{response.url.path} answers with something else; is it the API's URL?")


class Content:
    """The bytes of a file on their way here."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def num_bytes(self) -> int | None:
        """All in all, where the server says so."""
        return self._response.content_length

    def pieces(self) -> AsyncIterator[bytes]:
        """As they come."""
        return self._response.content.iter_chunked(_CHUNK_BYTES)


class _Told(io.FileIO):
    """A file that tells how much of it was read."""

    def __init__(self, file: BinaryIO, tell: Tell) -> None:
        super().__init__(file.fileno(), closefd=False)
        self._tell = tell

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(-1 if size is None else size)
        assert piece is not None  # it blocks
        self._tell(len(piece))
        return piece


@asynccontextmanager
async def connected(url: str, key: str) -> AsyncIterator[Server]:
    """The server at `url` (with or without /v1), asked with a key."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        yield Server(session, url.rstrip("/").removesuffix("/v1"))


def _refusal(status: int, body: bytes, url: str) -> Failure:
    message = _message(body) or f"{url} answers with status {status}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _WORTH_ANOTHER_TRY:
        return Unreachable(message)
    if status == HTTPStatus.UNAUTHORIZED:
        message = f"{url} refuses the key: {message}"
    return Refused(message, status)


def _message(body: bytes) -> str | None:
    """The line in an error's body, where there is one."""
    with suppress(msgspec.DecodeError, KeyError, TypeError):
        return " ".join(str(msgspec.json.decode(body)["error"]["message"]).split())[:LONGEST_MESSAGE]
    return None


def _moment(text: str | None) -> float | None:
    with suppress(TypeError, ValueError):
        return float(text or "")
    return None


def _quoted(name: str) -> str:
    """A name that was typed, as a part of a path."""
    return quote(name, safe="")
