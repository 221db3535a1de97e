"""Cuts a file into lines, in memory that does not grow with the file, and says where each one lies."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO, Final

LINE_FEED: Final = b"\n"
BYTE_ORDER_MARK: Final = "\ufeff".encode()
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
    """Every line, also empty ones. The last may lack its line feed; a byte order mark is skipped."""
    enough = len(BYTE_ORDER_MARK) + max_bytes + 2  # of a line that is too long, to see that it is
    position = 0
    for number in count(1):
        start = source.readline(enough)
        if not start:
            return
        mark = len(BYTE_ORDER_MARK) if number == 1 and start.startswith(BYTE_ORDER_MARK) else 0
        first_byte, content = position + mark, start[mark:].removesuffix(LINE_FEED)
        if len(content) <= max_bytes:
            yield Line(number, first_byte, len(content), content)
            position += len(start)
        else:
            num_read = len(start) if start.endswith(LINE_FEED) else len(start) + _skip_rest(source)
            yield Line(number, first_byte, num_read - mark, None)
            position += num_read


def _skip_rest(source: BinaryIO) -> int:
    """How long the rest of the line is, with its line feed."""
    num_skipped = 0
    while part := source.readline(SKIPPED_AT_ONCE):
        num_skipped += len(part)
        if part.endswith(LINE_FEED):
            break
    return num_skipped
