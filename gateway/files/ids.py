"""Names of files."""

import secrets
from typing import Final, NewType

FileId = NewType("FileId", str)

_RANDOM_BYTES: Final = 16  # nobody guesses one


def new_file_id() -> FileId:
    """A name that no file has."""
    return FileId(f"file-{secrets.token_hex(_RANDOM_BYTES)}")
