"""Bytes of a file on their way in: counted, hashed and written, a megabyte at a time, in a thread.

Never more than that is in memory, and the event loop waits for no disk. Caps bind as soon as they are passed.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from gateway.errors import GatewayError, InvalidRequest, RequestTooLarge
from gateway.files.store import BlobWriter
from gateway.files.threads import FileThreads

PENDING_BYTES: Final = 1024 * 1024
_NEWLINE: Final = b"\n"

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Caps:
    """`room` is what the owner may still store, and `no_room` what to say of so many bytes more."""

    max_bytes: int
    max_lines: int
    room: int
    no_room: Callable[[int], GatewayError]

    def check_size(self, num_bytes: int) -> None:
        """Raises RequestTooLarge, or what says that there is no room."""
        if num_bytes > self.max_bytes:
            raise RequestTooLarge(f"The file is over the limit of {self.max_bytes} bytes.")
        if num_bytes > self.room:
            raise self.no_room(num_bytes)

    def check_lines(self, num_lines: int) -> None:
        """Raises InvalidRequest."""
        if num_lines > self.max_lines:
            raise InvalidRequest(f"The file has too many lines: over {self.max_lines}.", param="file")


class Incoming:
    """One file that arrives. Without `create` it is measured only: its bytes are here already."""

    def __init__(self, threads: FileThreads, caps: Caps, *, create: Callable[[], BlobWriter] | None) -> None:
        self.num_bytes = 0
        self._threads = threads
        self._caps = caps
        self._create = create
        self._writer: BlobWriter | None = None
        self._under_way: asyncio.Future[None] | None = None
        self._num_newlines = 0
        self._last_byte = _NEWLINE
        self._hash = hashlib.sha256()
        self._pending: list[bytes] = []
        self._num_pending = 0

    @property
    def num_lines(self) -> int:
        """Of what was written so far; the last one may lack its end."""
        return self._num_newlines + (self._last_byte != _NEWLINE)

    @property
    def sha256(self) -> bytes:
        """Of what was written so far."""
        return self._hash.digest()

    def check_size(self, num_bytes: int) -> None:
        """Raises RequestTooLarge, or what says that there is no room, where it is to be so long."""
        self._caps.check_size(num_bytes)

    async def write(self, chunk: bytes) -> None:
        """Appends. Raises RequestTooLarge, InvalidRequest, what says that there is no room, and
        FileStoreUnavailable.
        """
        self.check_size(self.num_bytes + len(chunk))
        self.num_bytes += len(chunk)
        self._pending.append(chunk)
        self._num_pending += len(chunk)
        if self._num_pending >= PENDING_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """All of it is on its way to the disk. Raises as `write` does."""
        pending, self._pending, self._num_pending = self._pending, [], 0
        await self._in_thread(partial(self._take, pending))
        self._caps.check_lines(self.num_lines)

    async def commit(self) -> str:
        """The name of the blob, which is whole now. Raises FileStoreUnavailable."""
        assert self._writer is not None
        blob = await self._threads.run(self._writer.commit)
        self._writer = None
        return blob

    async def abandon(self) -> None:
        """Leaves nothing behind, unless it is committed. What was being written is waited for."""
        if self._under_way is not None:
            await asyncio.wait({self._under_way})
        writer, self._writer = self._writer, None
        if writer is not None:
            await self._threads.run(writer.abort)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self._under_way = asyncio.ensure_future(self._threads.run(work))
        await asyncio.shield(self._under_way)
        self._under_way = None

    def _take(self, chunks: list[bytes]) -> None:
        """In a thread."""
        if self._create is not None and self._writer is None:
            self._writer = self._create()
        for chunk in chunks:
            self._num_newlines += chunk.count(_NEWLINE)
            self._last_byte = chunk[-1:]
            self._hash.update(chunk)
            if self._writer is not None:
                self._writer.write(chunk)
