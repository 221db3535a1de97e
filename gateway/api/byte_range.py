"""Which bytes a `Range` header asks for. Pure.

One range is served. What is malformed, or names several, is as if it were not there: the whole is the answer.
"""

import re
from dataclasses import dataclass
from typing import Final

from gateway.errors import RangeNotSatisfiable

_ONE_RANGE: Final = re.compile(r"bytes=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*")


@dataclass(frozen=True)
class Span:
    """Bytes `[start, end)`."""

    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """How many they are."""
        return self.end - self.start


def wanted_span(header: str | None, size: int) -> Span | None:
    """The part that is asked for; None: the whole. Raises RangeNotSatisfiable where none of it is there."""
    match = None if header is None else _ONE_RANGE.fullmatch(header)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < start:
            return None  # malformed
    if start >= end:
        raise RangeNotSatisfiable(f"The file has {size} bytes; none of those that are asked for.")
    return Span(start, end)
