"""A batch as the server shows it, and what there is to say of one in a line. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.batches.status import TERMINAL, BatchStatus

_CUT_SHORT: Final = frozenset({BatchStatus.EXPIRED, BatchStatus.CANCELLED})  # what was not run has failed


class Counts(msgspec.Struct, frozen=True):
    """What became of a batch's requests so far."""

    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def done(self) -> int:
        """Those that have their answer, whatever it is."""
        return self.completed + self.failed


class LineError(msgspec.Struct, frozen=True):
    """What is wrong with a line of the input file, or, without a line, with all of it."""

    code: str | None = None
    line: int | None = None
    message: str | None = None


class LineErrors(msgspec.Struct, frozen=True):
    """The wire's list of them."""

    data: list[LineError] = []


class Batch(msgspec.Struct, frozen=True):
    """What is read of the wire's object. A status of a newer server stands for itself."""

    id: str
    status: str
    endpoint: str = ""
    created_at: float = 0.0
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: Counts = Counts()
    errors: LineErrors | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will change."""
        return self.status in TERMINAL

    @property
    def is_success(self) -> bool:
        """Whether every request has the answer that was hoped for."""
        return self.status == BatchStatus.COMPLETED and not self.request_counts.failed

    @property
    def line_errors(self) -> Sequence[LineError]:
        """Why it was not run."""
        return () if self.errors is None else self.errors.data


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it was seen: also the server's own words, and when it expects the end (unix seconds)."""

    batch: Batch
    body: dict[str, Any]
    estimated_end: float | None = None


def standing(batch: Batch) -> str:
    """How it stands: `in_progress: 40 of 100 done, 2 of them failed`."""
    counts = batch.request_counts
    if not counts.total:
        return batch.status
    if batch.status in _CUT_SHORT:
        return f"{batch.status}: {counts.completed:,} of {counts.total:,} answered"
    failed = f", {counts.failed:,} of them failed" if counts.failed else ""
    return f"{batch.status}: {counts.done:,} of {counts.total:,} done{failed}"


def why_no_success(batch: Batch) -> str:
    """One line for who waited for a batch that ended in another way than was hoped for."""
    counts = batch.request_counts
    match batch.status:
        case BatchStatus.FAILED:
            return f"{batch.id} failed, and nothing of it was run: its file has {_errors(batch)}"
        case BatchStatus.COMPLETED:
            return f"{counts.failed:,} of {counts.total:,} requests failed; {how_to_fetch(batch)}"
        case _:
            answered = f"{counts.completed:,} of {counts.total:,} requests answered"
            files = f"; {how_to_fetch(batch)}" if counts.done else ""
            return f"{batch.id} is {batch.status} with {answered}{files}"


def how_to_fetch(batch: Batch) -> str:
    """The command that gets its answers."""
    return f"get the answers: sluice batch fetch {batch.id}"


def created(batch: Batch) -> str:
    """When it was submitted, for a table."""
    return f"{datetime.fromtimestamp(batch.created_at, UTC):%Y-%m-%d %H:%M}"


def _errors(batch: Batch) -> str:
    num = len(batch.line_errors)
    return "an error" if num == 1 else f"{num or 'some':} errors"
