"""Cuts a file into lines, in memory that does not grow with the file, and says where each one lies."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO, Final

SKIPPED_AT_ONCE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """Lines count from 1. `data` is without its line feed; None: it is longer than it may be."""

    number: int
    first_byte: int
    num_bytes: int
    data: bytes | None


def read_lines(source: BinaryIO, *, max_bytes: int) -> Iterator[Line]:
    """Every line, also empty ones. The last may lack its line feed."""
    first_byte = 0
    for number in count(1):
        data = source.readline(max_bytes + 2)  # of one that is too long, enough to see that it is
        if not data:
            return
        num_read = len(data)
        if num_read > max_bytes and not data.endswith(b"\n"):
            num_read += _skip_rest(source) if num_read == max_bytes + 2 else 0
            yield Line(number, first_byte, num_read, None)
        else:
            content = data.removesuffix(b"\n")
            yield Line(number, first_byte, len(content), content)
        first_byte += num_read


def _skip_rest(source: BinaryIO) -> int:
    """How long the rest of the line is."""
    num_skipped = 0
    while part := source.readline(SKIPPED_AT_ONCE):
        num_skipped += len(part)
        if part.endswith(b"\n"):
            break
    return num_skipped
