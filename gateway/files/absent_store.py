"""Where no place for files is set: says so to whoever brings one, and not before."""

from collections.abc import Iterator
from typing import BinaryIO, NoReturn

from gateway.errors import FileStoreUnavailable
from gateway.files.store import BlobWriter, StoredBlob
from gateway.tenants.ids import TenantId


class AbsentFileStore:
    """Keeps nothing."""

    def create(self, _tenant: TenantId) -> BlobWriter:
        """Refuses."""
        _refuse()

    def open(self, _blob: str, *, start: int = 0) -> BinaryIO:
        """Refuses."""
        _refuse()

    def read_slices(self, _blob: str, _slices: list[tuple[int, int]]) -> list[bytes]:
        """Refuses."""
        _refuse()

    def delete(self, _blob: str) -> None:
        """Refuses."""
        _refuse()

    def blobs(self) -> Iterator[StoredBlob]:
        """There are none."""
        return iter(())


def _refuse() -> NoReturn:
    raise FileStoreUnavailable(
        "This server keeps no files: its operator has to set [files] directory, or s3_bucket."
    )
