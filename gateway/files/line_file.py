"""A file that is written line by line; its size and its SHA-256 are known when it is whole. It blocks."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.files.store import BlobWriter, FileStore
from gateway.tenants.ids import TenantId


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """A whole blob, and what a row says of it."""

    blob: str
    num_bytes: int
    sha256: bytes


class LineFile:
    """Begun with its first line: without any, there is no file."""

    def __init__(self, store: FileStore, tenant: TenantId) -> None:
        self._store = store
        self._tenant = tenant
        self._writer: BlobWriter | None = None
        self._sha256 = hashlib.sha256()
        self._num_bytes = 0
        self.num_lines = 0

    def write(self, lines: Sequence[str]) -> None:
        """Appends lines, given without their ends. Raises FileStoreUnavailable."""
        if not lines:
            return
        if self._writer is None:
            self._writer = self._store.create(self._tenant)
        chunk = "".join(f"{line}\n" for line in lines).encode()
        self._writer.write(chunk)
        self._sha256.update(chunk)
        self._num_bytes += len(chunk)
        self.num_lines += len(lines)

    def commit(self) -> WrittenFile | None:
        """The file is whole; None where it has no line. Raises FileStoreUnavailable."""
        if self._writer is None:
            return None
        blob = self._writer.commit()
        self._writer = None
        return WrittenFile(blob=blob, num_bytes=self._num_bytes, sha256=self._sha256.digest())

    def abort(self) -> None:
        """Forgets it, unless it is whole."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None
