"""Where the bytes of files lie: the interface. It knows no tenants' rules, no rows, and no HTTP.

All of it blocks: callers on the event loop use threads. A blob's name is `<tenant>/<random>`; a blob exists
as a whole or not at all, and is never changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO, Final, Protocol

from gateway.tenants.ids import TenantId

LEFT_AFTER: Final = timedelta(hours=2)  # what dead writers left is removed then; longer than any upload lasts


class BlobMissing(Exception):
    """A row names a blob that is not there: it was removed behind our back, or lies in another store."""


@dataclass(frozen=True)
class StoredBlob:
    """A blob that is there. `stored_at` is when it became whole."""

    name: str
    stored_at: datetime


class BlobWriter(Protocol):
    """A blob that is being written. `commit` or `abort` ends it; whoever dies before leaves nothing."""

    def write(self, chunk: bytes) -> None:
        """Appends. Raises FileStoreUnavailable."""

    def commit(self) -> str:
        """The blob is whole and survives a power cut; its name. Raises FileStoreUnavailable."""

    def abort(self) -> None:
        """Forgets what was written. Never raises."""


class FileStore(Protocol):
    """Keeps blobs."""

    def create(self, tenant: TenantId) -> BlobWriter:
        """Begins a blob. Raises FileStoreUnavailable."""

    def open(self, blob: str, *, start: int = 0) -> BinaryIO:
        """Reads a blob from byte `start` on; a context manager. Raises BlobMissing, FileStoreUnavailable."""

    def read_slices(self, blob: str, slices: list[tuple[int, int]]) -> list[bytes]:
        """Parts of a blob, each by (first byte, number of bytes). Raises as `open` does."""

    def delete(self, blob: str) -> None:
        """Removes a blob; one that is not there is removed already. Raises FileStoreUnavailable."""

    def blobs(self) -> Iterator[StoredBlob]:
        """All that there are, in any order. Raises FileStoreUnavailable."""
