"""Keeps blobs in a local folder: `<folder>/<tenant>/<random>`.

A blob is written beside its place under another name (`….part`), brought to the disk and renamed. What dead
writers left under such names is removed hours later, whenever all blobs are listed.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from gateway.errors import FileStoreUnavailable
from gateway.files.blob_names import check_blob_name, is_blob_name, new_blob_name
from gateway.files.slices import read_slices
from gateway.files.store import LEFT_AFTER, BlobMissing, StoredBlob
from gateway.tenants.ids import TenantId

_PART: Final = ".part"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class LocalFileStore:
    """The folder is made if the one around it is there: a disk that is not mounted is not written past."""

    def __init__(self, directory: Path, *, left_after: timedelta = LEFT_AFTER) -> None:
        self._directory = directory
        self._left_after = left_after

    def create(self, tenant: TenantId) -> "LocalBlobWriter":
        """Begins a blob. Raises FileStoreUnavailable."""
        name = new_blob_name(tenant)
        with _told():
            _make_folder(self._directory)
            _make_folder(self._directory / tenant)
            return LocalBlobWriter(self._directory, name)

    def open(self, blob: str, *, start: int = 0) -> BinaryIO:
        """Reads a blob from byte `start` on. Raises BlobMissing, FileStoreUnavailable."""
        place = self._place(blob)
        with _told():
            try:
                opened = place.open("rb")
            except FileNotFoundError as error:
                raise BlobMissing("a blob is not where it was written") from error
            opened.seek(start)
            return opened

    def read_slices(self, blob: str, slices: list[tuple[int, int]]) -> list[bytes]:
        """Parts of a blob. Raises BlobMissing, FileStoreUnavailable."""
        with self.open(blob) as opened, _told():
            return read_slices(slices, lambda start, num: _read(opened.fileno(), start, num))

    def delete(self, blob: str) -> None:
        """Removes a blob; one that is not there is removed already. Raises FileStoreUnavailable."""
        with _told():
            self._place(blob).unlink(missing_ok=True)

    def blobs(self) -> Iterator[StoredBlob]:
        """All that there are, tenant by tenant. Raises FileStoreUnavailable."""
        if not self._directory.exists():
            return
        with _told():
            for folder in sorted(self._directory.iterdir()):
                for path in folder.iterdir() if folder.is_dir() else ():
                    if (found := _looked_at(path, self._left_after)) is not None:
                        yield found

    def _place(self, blob: str) -> Path:
        check_blob_name(blob)
        return self._directory / blob


class LocalBlobWriter:
    """A blob that is being written; its folder is there."""

    def __init__(self, directory: Path, name: str) -> None:
        self._name = name
        self._path = directory / name
        self._part = self._path.with_name(self._path.name + _PART)
        descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)

    def fileno(self) -> int:
        """Of the file that is being written."""
        return self._file.fileno()

    def write(self, chunk: bytes) -> None:
        """Appends. Raises FileStoreUnavailable."""
        rest = memoryview(chunk)
        with _told():
            while rest:
                rest = rest[self._file.write(rest) :]

    def commit(self) -> str:
        """The blob is whole and survives a power cut; its name. Raises FileStoreUnavailable."""
        with _told():
            os.utime(self.fileno())  # it is as old as its being whole
            os.fsync(self.fileno())
            self._file.close()
            self._part.rename(self._path)
            _sync_folder(self._path.parent)
        return self._name

    def abort(self) -> None:
        """Forgets what was written."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._part.unlink()


def _make_folder(folder: Path) -> None:
    """A folder that will be there after a power cut, too."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int, start: int, num_bytes: int) -> bytes:
    """Exactly so many bytes. Raises BlobMissing where there are fewer."""
    parts: list[bytes] = []
    while num_bytes > 0:
        part = os.pread(descriptor, num_bytes, start)
        if not part:
            raise BlobMissing("a blob is shorter than was written down")
        parts.append(part)
        start, num_bytes = start + len(part), num_bytes - len(part)
    return b"".join(parts)


def _looked_at(path: Path, left_after: timedelta) -> StoredBlob | None:
    """What lies there, if it is a blob; what a dead writer left is removed. It may vanish meanwhile."""
    with suppress(FileNotFoundError):
        changed_at = path.stat().st_mtime
        name = f"{path.parent.name}/{path.name}"
        if is_blob_name(name):
            return StoredBlob(name, datetime.fromtimestamp(changed_at, UTC))
        is_part = is_blob_name(name.removesuffix(_PART)) and name.endswith(_PART)
        if is_part and time.time() - changed_at > left_after.total_seconds():
            path.unlink()
    return None


@contextmanager
def _told() -> Iterator[None]:
    """What the disk says, as one line."""
    try:
        yield
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> FileStoreUnavailable:
    """What to do about it; no path is told, as the line goes to who sent the request."""
    if error.errno in _FULL:
        return FileStoreUnavailable(
            "The disk that files are kept on is full: delete files, or ask the operator for more room."
        )
    return FileStoreUnavailable(
        f"The folder that files are kept in ([files] directory) cannot be used: {error.strerror}."
    )
