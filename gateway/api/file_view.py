"""A file as the published API shows it."""

import msgspec

from gateway.files.file import StoredFile


class FileObject(msgspec.Struct, frozen=True):
    """A file. It may be used at once: `status` is `processed` from the beginning."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    status: str = "processed"
    status_details: str | None = None
    object: str = "file"


class FileList(msgspec.Struct, frozen=True):
    """One page of files; the next one begins `after` the last id of this one."""

    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class DeletedFile(msgspec.Struct, frozen=True):
    """What there was."""

    id: str
    object: str = "file"
    deleted: bool = True


def file_object(stored: StoredFile) -> FileObject:
    """How a file is shown."""
    return FileObject(
        id=stored.id,
        bytes=stored.num_bytes,
        created_at=int(stored.created_at.timestamp()),
        expires_at=None if stored.expires_at is None else int(stored.expires_at.timestamp()),
        filename=stored.filename,
        purpose=stored.purpose.value,
    )
