"""What a batch is made of: a file, or standard input, which is on the disk before any of it is sent."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import BinaryIO, Final

from deploy.failure import Failure

STANDARD_INPUT: Final = Path("-")
_PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Source:
    """An open file, at its beginning; `name` is how the server is to call it."""

    name: str
    num_bytes: int
    file: BinaryIO


@contextmanager
def opened(file: Path) -> Iterator[Source]:
    """Raises Failure for what is no file of requests."""
    if file == STANDARD_INPUT:
        with _kept_input() as kept:
            yield _source("standard input", "standard-input.jsonl", kept)
    else:
        with _open(file) as content:
            yield _source(str(file), file.name, content)


def _source(what: str, name: str, content: BinaryIO) -> Source:
    num_bytes = os.fstat(content.fileno()).st_size
    if not num_bytes:
        raise Failure(f"{what} is empty: a batch is a request in each line")
    return Source(name=name, num_bytes=num_bytes, file=content)


def _open(file: Path) -> BinaryIO:
    if not file.exists():
        raise Failure(f"there is no file {file}")
    if not file.is_file():
        raise Failure(f"{file} cannot be read")
    try:
        return file.open("rb")
    except OSError as error:
        raise Failure(f"{file} cannot be read") from error


@contextmanager
def _kept_input() -> Iterator[BinaryIO]:
    """In a file without a name, which is gone with this process: an upload says first how long it is."""
    if sys.stdin is None:
        raise Failure("standard input is closed")
    with TemporaryFile() as kept:
        try:
            shutil.copyfileobj(sys.stdin.buffer, kept, _PIECE_BYTES)
            kept.seek(0)
        except OSError as error:
            raise Failure(
                f"standard input cannot be read into {gettempdir()}: {error.strerror}; "
                "TMPDIR names another folder"
            ) from error
        yield kept
