"""What is wrong with a batch's input, line by line: as stored, and as the wire shows it. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

MOST_LISTED: Final = 100


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong. `line` None: with the file as a whole. `param` is its place in the line."""

    code: str
    line: int | None
    message: str
    param: str | None = None


class Faults:
    """Collects: all are counted, the first hundred are kept."""

    def __init__(self) -> None:
        self._first: list[Fault] = []
        self.num = 0

    def add(self, fault: Fault) -> None:
        """One more."""
        self.num += 1
        if len(self._first) < MOST_LISTED:
            self._first.append(fault)

    def listed(self) -> tuple[Fault, ...]:
        """Those that are told; the last one tells how many more there are."""
        if self.num <= MOST_LISTED:
            return tuple(self._first)
        *others, last = self._first
        total = f"{last.message} (The first {MOST_LISTED} of {self.num} errors are listed.)"
        return (*others, msgspec.structs.replace(last, message=total))


def stored(faults: Iterable[Fault]) -> dict[str, Any]:
    """What a batch's row holds. What faults quote may hold what no row can: that is escaped."""
    return {"object": "list", "data": [msgspec.to_builtins(_storable(fault)) for fault in faults]}


def _storable(fault: Fault) -> Fault:
    return msgspec.structs.replace(
        fault, message=_escaped(fault.message), param=None if fault.param is None else _escaped(fault.param)
    )


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\u0000")


def read(value: dict[str, Sequence[Any]] | None) -> tuple[Fault, ...]:
    """The faults in a batch's row."""
    return () if value is None else msgspec.convert(value["data"], tuple[Fault, ...])
