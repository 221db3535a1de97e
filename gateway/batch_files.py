"""Writes the two files of an ended batch: answers, and errors. A line for each item, whatever became of it.

Lines are read page by page and written in threads: memory is that of a page, and nothing waits for a disk.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.batches import outputs
from gateway.batches.ids import request_id_of
from gateway.batches.output_line import unanswered
from gateway.batches.outputs import EndedBatch, Result, UnrunItem
from gateway.batches.status import EndsAs
from gateway.db import Database
from gateway.files.line_file import LineFile, WrittenFile
from gateway.files.store import FileStore
from gateway.rhythm import Rhythm

PAGE_LINES: Final = 500
PAGE_BYTES: Final = 1024 * 1024

Row = TypeVar("Row", Result, UnrunItem)

_WHY_UNRUN: Final = {
    EndsAs.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    EndsAs.CANCELLED: ("batch_cancelled", "This request was not executed: its batch was cancelled."),
}


class LeadsNoMore(Exception):
    """The term ended while files were written: the next leader writes them."""


@dataclass(frozen=True, kw_only=True)
class BatchFiles:
    """Both files, None where there would be no line in it. Items that were never run are in `errors`."""

    output: WrittenFile | None
    errors: WrittenFile | None
    num_completed: int
    num_failed: int
    num_unrun: int

    @property
    def num_lines(self) -> int:
        """In both."""
        return self.num_completed + self.num_failed + self.num_unrun

    @property
    def blobs(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(written.blob for written in (self.output, self.errors) if written is not None)


async def write_files(database: Database, store: FileStore, ended: EndedBatch, term: Rhythm) -> BatchFiles:
    """Raises StoreUnavailable, FileStoreUnavailable, or LeadsNoMore."""
    output, errors = LineFile(store, ended.tenant), LineFile(store, ended.tenant)

    async def results(after: int) -> list[Result]:
        async with database.tenant_transaction(ended.tenant) as connection:
            return await outputs.results(
                connection, ended, after=after, most=PAGE_LINES, most_bytes=PAGE_BYTES
            )

    async def unrun(after: int) -> list[UnrunItem]:
        async with database.tenant_transaction(ended.tenant) as connection:
            return await outputs.unrun(connection, ended, after=after, most=PAGE_LINES)

    try:
        async for page in _pages(term, results):
            await asyncio.to_thread(_write_results, page, output, errors)
        num_failed = errors.num_lines
        async for rest in _pages(term, unrun):
            await asyncio.to_thread(_write_unrun, ended, rest, errors)
        return BatchFiles(
            output=await asyncio.to_thread(output.commit),
            errors=await asyncio.to_thread(errors.commit),
            num_completed=output.num_lines,
            num_failed=num_failed,
            num_unrun=errors.num_lines - num_failed,
        )
    finally:
        await asyncio.to_thread(_abort, output, errors)  # where it is not whole


async def _pages(term: Rhythm, page_after: Callable[[int], Awaitable[list[Row]]]) -> AsyncIterator[list[Row]]:
    after = 0
    while page := await page_after(after):
        yield page
        if term.is_over:
            raise LeadsNoMore
        after = page[-1].line


def _write_results(page: Sequence[Result], output: LineFile, errors: LineFile) -> None:
    output.write([result.body for result in page if not result.is_error])
    errors.write([result.body for result in page if result.is_error])


def _write_unrun(ended: EndedBatch, page: Sequence[UnrunItem], errors: LineFile) -> None:
    code, message = _WHY_UNRUN[ended.ends_as]
    errors.write(
        [
            unanswered(request_id_of(ended.id, item.line), item.custom_id, code=code, message=message)
            for item in page
        ]
    )


def _abort(*files: LineFile) -> None:
    for one in files:
        one.abort()
