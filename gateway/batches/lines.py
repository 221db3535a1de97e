"""Cuts a file into lines, in memory that does not grow with the file, and says where each one lies."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO, Final

LINE_FEED: Final = b"\n"
SKIPPED_AT_ONCE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """Lines count from 1. `data` is without its line feed; None: it is longer than it may be.

    Then `num_bytes` counts all there is of it.
    """

    number: int
    first_byte: int
    num_bytes: int
    data: bytes | None


def read_lines(source: BinaryIO, *, max_bytes: int) -> Iterator[Line]:
    """Every line, also empty ones. The last may lack its line feed."""
    first_byte = 0
    for number in count(1):
        start = source.readline(max_bytes + 2)  # of a line that is too long, enough to see that it is
        if not start:
            return
        content = start.removesuffix(LINE_FEED)
        if len(content) <= max_bytes:
            yield Line(number, first_byte, len(content), content)
            first_byte += len(start)
        else:
            num_read = len(start) if start.endswith(LINE_FEED) else len(start) + _skip_rest(source)
            yield Line(number, first_byte, num_read, None)
            first_byte += num_read


def _skip_rest(source: BinaryIO) -> int:
    """How long the rest of the line is, with its line feed."""
    num_skipped = 0
    while part := source.readline(SKIPPED_AT_ONCE):
        num_skipped += len(part)
        if part.endswith(LINE_FEED):
            break
    return num_skipped
