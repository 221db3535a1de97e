"""Keeps a batch's items on the disk, from their validation to their transaction: memory is bounded."""

from collections.abc import Iterator
from typing import BinaryIO, Final

import msgspec

from gateway.batches.items import Item, Items, columns_of

CHUNK_ITEMS: Final = 2_500
_LENGTH_BYTES: Final = 8


class ItemSpool:
    """Writes to a file of its own, and reads it again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._waiting: list[Item] = []

    def add(self, items: list[Item]) -> None:
        """Keeps some more."""
        self._waiting += items
        if len(self._waiting) >= CHUNK_ITEMS:
            self._write()

    def chunks(self) -> Iterator[Items]:
        """All that was kept, in order; nothing may be added any more."""
        if self._waiting:
            self._write()
        self._file.seek(0)
        while length := self._file.read(_LENGTH_BYTES):
            yield msgspec.msgpack.decode(self._file.read(int.from_bytes(length)), type=Items)

    def _write(self) -> None:
        chunk = msgspec.msgpack.encode(columns_of(self._waiting))
        self._file.write(len(chunk).to_bytes(_LENGTH_BYTES) + chunk)
        self._waiting = []
