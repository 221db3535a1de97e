"""Whose journals lie in a folder, which of their processes are dead, and what those left behind.

    <epoch>.lock               held, by flock, as long as the process lives
    <epoch>-<number>.journal   its segments, in order

The kernel lets a lock go with its process, however that ends. Who looks and who begins take turns (`guard`):
so nobody takes a life that is just beginning for one that has ended.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import JournalUnavailable
from gateway.usage.journal_format import JournalRecord, Replayed, read, replayed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of a gateway process, by its epoch; `lock` is the descriptor of its lock, held by us."""

    folder: Path
    epoch: int
    lock: int

    @property
    def segments(self) -> list[Path]:
        """Its files, oldest first."""
        return sorted(self.folder.glob(f"{self.epoch}-*.journal"), key=segment_number)

    def segment(self, number: int) -> Path:
        """Where a segment of that number lies."""
        return self.folder / f"{self.epoch}-{number:08}.journal"


def segment_number(path: Path) -> int:
    """The place of a segment among those of its life."""
    return int(path.stem.partition("-")[2])


def begin(folder: Path, epoch: int) -> Life:
    """Our own life. Raises JournalUnavailable, with a line for the operator."""
    with _errors_told(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _guard(folder):
            lock = _lock(folder, epoch)
    if lock is None:
        raise JournalUnavailable(f"Usage of epoch {epoch} is kept in {folder} by another process.")
    return Life(folder=folder, epoch=epoch, lock=lock)


def abandoned(folder: Path) -> list[Life]:
    """The lives whose process is dead. They are ours, and nobody else's, until removed or released.

    Raises JournalUnavailable.
    """
    if not folder.exists():
        return []
    with _errors_told(folder), _guard(folder):
        locks = {epoch: _lock(folder, epoch) for epoch in _epochs(folder)}
    return [Life(folder=folder, epoch=epoch, lock=lock) for epoch, lock in locks.items() if lock is not None]


def replay(life: Life) -> Replayed:
    """All that a life had written down. Raises JournalUnavailable."""
    with _errors_told(life.folder):
        return replayed(record for segment in life.segments for record in _records(segment))


def remove(life: Life) -> None:
    """Forgets a life, all of which is stored."""
    for segment in life.segments:
        segment.unlink(missing_ok=True)
    with _guard(life.folder):
        _lock_file(life.folder, life.epoch).unlink(missing_ok=True)
        release(life)


def release(life: Life) -> None:
    """Leaves a life as it is to whoever looks next."""
    os.close(life.lock)


@contextmanager
def _errors_told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalUnavailable(f"Usage cannot be kept in {folder}: {error.strerror}.") from error


@contextmanager
def _guard(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / "guard", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _epochs(folder: Path) -> list[int]:
    files = [path for path in folder.iterdir() if path.suffix in (".lock", ".journal")]
    return sorted({int(path.stem.partition("-")[0]) for path in files})


def _records(segment: Path) -> list[JournalRecord]:
    """Where it ends torn or spoilt, the records before that."""
    data = segment.read_bytes()
    records, num_read = read(data)
    if num_read < len(data):
        logger.warning("%s ends torn: %d of its %d bytes can be read", segment, num_read, len(data))
    return records


def _lock(folder: Path, epoch: int) -> int | None:
    """The lock of a life, or None where its process holds it."""
    descriptor = os.open(_lock_file(folder, epoch), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _lock_file(folder: Path, epoch: int) -> Path:
    return folder / f"{epoch}.lock"
