"""The states of a batch and of its items: the wire's words, and which follow which. Pure.

    validating ──▶ failed, expired
        │    ╲
        ▼     ╲──────────▶ cancelling ──▶ cancelled
    in_progress ─▶ expired     ▲
        ╰─────▶ finalizing ────╯
                    ╰─────▶ completed

Towards which end a batch goes is its `EndsAs`: one that expires stays `in_progress`, and one that is
cancelled `cancelling`, until its files are written.
"""

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


TERMINAL: Final = frozenset(
    {BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)
OPEN: Final = frozenset(BatchStatus) - TERMINAL
