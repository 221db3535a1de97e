"""What this process has promised and measured, written down before the store has it.

A record is with the kernel when `append` returns, so a process that is killed loses nothing; after `sync` it
is on the disk. What the store has is forgotten, segment by segment, oldest first:

    segment 1  | open A  open B  close B |          both may go when B is stored,
    segment 2  | A again | open C ...               as the next one says again what was open

It knows neither who pays nor how anything is stored. One per process, used from its event loop.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self, assert_never

from gateway.errors import JournalUnavailable
from gateway.usage import journal_lives
from gateway.usage.journal_format import (
    Closed,
    Extended,
    JournalRecord,
    Opened,
    Reached,
    extended,
    frame,
    reached,
)
from gateway.usage.journal_lives import Life, segment_number

SEGMENT_BYTES: Final = 4 * 1024 * 1024
PROBE_BYTES: Final = 4096


class Journal:
    """The journal of our own life."""

    def __init__(self, life: Life, first: "_Segment", *, segment_bytes: int) -> None:
        self._life = life
        self._segments = deque([first])
        self._segment_bytes = segment_bytes
        self._open: dict[str, Opened] = {}
        self._closed_in: dict[str, _Segment] = {}  # what has ended and is not yet stored
        self._syncing = asyncio.Lock()

    @classmethod
    def open(cls, folder: Path, epoch: int, *, segment_bytes: int = SEGMENT_BYTES) -> Self:
        """The journal of a life that begins. Raises JournalUnavailable, with a line for the operator."""
        life = journal_lives.begin(folder, epoch)
        try:
            # Another store may have given its number before: that life's segments are not ours.
            first = _Segment(life, max(map(segment_number, life.segments), default=0) + 1)
            first.probe()
        except JournalUnavailable:
            journal_lives.release(life)
            raise
        return cls(life, first, segment_bytes=segment_bytes)

    def append(self, record: JournalRecord) -> None:
        """Writes a record down. Raises JournalUnavailable: then it is not, and must not be acted upon."""
        segment = self._segments[-1]
        if segment.num_new_bytes >= self._segment_bytes:
            segment = self._begin_segment()
        segment.write(frame(record))
        match record:
            case Opened():
                self._open[record.request_id] = record
            case Extended():
                self._open[record.request_id] = extended(self._open[record.request_id], record)
            case Reached():
                self._open[record.request_id] = reached(self._open[record.request_id], record)
            case Closed():
                del self._open[record.request_id]
                self._closed_in[record.request_id] = segment
                segment.num_unstored += 1
            case _:
                assert_never(record)

    async def sync(self) -> None:
        """Brings what is written to the disk, and forgets what is stored. Raises JournalUnavailable."""
        async with self._syncing:
            unsynced = {segment: segment.num_bytes for segment in self._segments if segment.is_unsynced}
            if unsynced:
                descriptors = [segment.descriptor for segment in unsynced]
                await asyncio.to_thread(_fsync, self._life.folder, descriptors)
            for segment, num_bytes in unsynced.items():
                segment.num_synced_bytes = num_bytes
            self._forget_stored()

    def stored(self, request_ids: Iterable[str]) -> None:
        """The store has the ends of these requests."""
        for request_id in request_ids:
            segment = self._closed_in.pop(request_id, None)
            if segment is not None:
                segment.num_unstored -= 1

    def close(self) -> None:
        """Ends this life, after its last `sync`. What is open or not stored is left for others to replay."""
        is_settled = not self._open and not self._closed_in
        for segment in self._segments:
            segment.remove() if is_settled else segment.close()
        if self._life.segments:
            journal_lives.release(self._life)
        else:
            journal_lives.remove(self._life)

    def _begin_segment(self) -> "_Segment":
        segment = _Segment(self._life, self._segments[-1].number + 1)
        segment.restate(self._open.values())
        self._segments.append(segment)
        return segment

    def _forget_stored(self) -> None:
        """Oldest first: an end must not be forgotten before its beginning."""
        while len(self._segments) > 1:
            oldest, following = self._segments[0], self._segments[1]
            if oldest.num_unstored or not following.is_restated:
                break
            self._segments.popleft().remove()


class _Segment:
    """One file. A write that fails half way is written over by the next."""

    def __init__(self, life: Life, number: int) -> None:
        self.number = number
        self.num_bytes = 0
        self.num_synced_bytes = 0
        self.num_unstored = 0
        self._num_restated_bytes = 0
        self._path = life.segment(number)
        try:
            self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise _unavailable(error) from error

    @property
    def num_new_bytes(self) -> int:
        return self.num_bytes - self._num_restated_bytes

    @property
    def is_unsynced(self) -> bool:
        return self.num_synced_bytes < self.num_bytes

    @property
    def is_restated(self) -> bool:
        """Whether what was open before this segment is safe in it."""
        return self.num_synced_bytes >= self._num_restated_bytes

    def write(self, data: bytes) -> None:
        try:
            num_written = os.pwrite(self.descriptor, data, self.num_bytes)
        except OSError as error:
            raise _unavailable(error) from error
        if num_written < len(data):
            raise JournalUnavailable("Usage cannot be written down: no room for a whole record.")
        self.num_bytes += num_written

    def restate(self, opened: Iterable[Opened]) -> None:
        self._write_first(b"".join(map(frame, opened)))
        self._num_restated_bytes = self.num_bytes

    def probe(self) -> None:
        """Whether there is room at all: better to know at the start."""
        self._write_first(bytes(PROBE_BYTES))
        os.ftruncate(self.descriptor, 0)
        self.num_bytes = 0

    def _write_first(self, data: bytes) -> None:
        """Where even this fails, nothing of the segment stays behind."""
        try:
            self.write(data)
        except JournalUnavailable:
            self.remove()
            raise

    def remove(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self.descriptor)


def _fsync(folder: Path, descriptors: Sequence[int]) -> None:
    """The files' contents, and their names in the folder."""
    try:
        for descriptor in descriptors:
            os.fsync(descriptor)
        entries = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(entries)
        finally:
            os.close(entries)
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> JournalUnavailable:
    return JournalUnavailable(f"Usage cannot be written down: {error.strerror}.")
