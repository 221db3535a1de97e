"""The states of a batch and of its items: the wire's words, and which may follow which. Pure.

    validating ──▶ failed
        │    ╲
        ▼     ╲──────────▶ cancelling ──▶ cancelled
    in_progress ─▶ expired     ▲
        ╰─────▶ finalizing ────╯
                    ╰─────▶ completed

Towards which end a batch goes is its `EndsAs`: one that expires stays `in_progress`, and one that is
cancelled `cancelling`, until its files are written.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class BatchStatus(StrEnum):
    """A closed set."""

    VALIDATING = "validating"
    FAILED = "failed"  # its file cannot be run; no line was
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # every line has its answer; the files are being written
    COMPLETED = "completed"
    EXPIRED = "expired"  # its window closed first; what was done is there
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"  # what was done is there


class EndsAs(StrEnum):
    """Towards which end a batch goes whose lines are run no more."""

    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class ItemState(StrEnum):
    """A closed set."""

    PENDING = "pending"  # may be claimed
    LEASED = "leased"  # a worker runs it
    DONE = "done"  # has its one result
    UNRUN = "unrun"  # its batch ended before it did


NEXT: Final[Mapping[BatchStatus, frozenset[BatchStatus]]] = {
    BatchStatus.VALIDATING: frozenset(
        {BatchStatus.FAILED, BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING, BatchStatus.EXPIRED}
    ),
    BatchStatus.IN_PROGRESS: frozenset({BatchStatus.FINALIZING, BatchStatus.EXPIRED, BatchStatus.CANCELLING}),
    BatchStatus.FINALIZING: frozenset({BatchStatus.COMPLETED, BatchStatus.CANCELLING}),
    BatchStatus.CANCELLING: frozenset({BatchStatus.CANCELLED}),
    BatchStatus.FAILED: frozenset(),
    BatchStatus.COMPLETED: frozenset(),
    BatchStatus.EXPIRED: frozenset(),
    BatchStatus.CANCELLED: frozenset(),
}
TERMINAL: Final = frozenset(status for status, following in NEXT.items() if not following)
OPEN: Final = frozenset(BatchStatus) - TERMINAL


def may_follow(before: BatchStatus, after: BatchStatus) -> bool:
    """Whether a batch may go from one state to the other at once."""
    return after in NEXT[before]
