"""Which bytes to read at once: slices that touch are one read, within bounds. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

LONGEST_READ: Final = 4 * 1024 * 1024  # bytes; a single slice may be longer

Slice = tuple[int, int]  # first byte, number of bytes


@dataclass
class Run:
    """One read: `[start, end)`, and which of the slices it holds."""

    start: int
    end: int
    places: list[int] = field(default_factory=list)


def runs_of(slices: Sequence[Slice]) -> list[Run]:
    """Reads that bring all slices, in the order of the file."""
    runs: list[Run] = []
    for place in sorted(range(len(slices)), key=lambda place: slices[place]):
        start, num_bytes = slices[place]
        last = runs[-1] if runs else None
        if last is None or start > last.end or start + num_bytes - last.start > LONGEST_READ:
            last = Run(start, start)
            runs.append(last)
        last.end = max(last.end, start + num_bytes)
        last.places.append(place)
    return runs


def read_slices(slices: Sequence[Slice], read: Callable[[int, int], bytes]) -> list[bytes]:
    """The slices, in their order. `read` brings so many bytes from a first one on."""
    parts = [b""] * len(slices)
    for run in runs_of(slices):
        whole = read(run.start, run.end - run.start)
        for place in run.places:
            start, num_bytes = slices[place]
            parts[place] = whole[start - run.start : start - run.start + num_bytes]
    return parts
