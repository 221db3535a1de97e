"""Records for tests of the journal, and a disk that is full."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from gateway.usage.journal_format import Closed, Extended, Opened, Reached
from gateway.usage.outcome import Outcome

ADMITTED_AT: Final = datetime(2026, 1, 5, 12, 34, 56, 789_123, tzinfo=UTC)


def opened(request_id: str = "a", tokens: int = 100) -> Opened:
    return Opened(request_id, b"who pays", tokens, ADMITTED_AT)


def more(request_id: str = "a", tokens: int = 10) -> Extended:
    return Extended(request_id, tokens)


def reached(request_id: str = "a", completion_tokens: int = 64) -> Reached:
    return Reached(request_id, 3, completion_tokens)


def closed(request_id: str = "a", completion_tokens: int = 7) -> Closed:
    return Closed(request_id, 3, 2, completion_tokens, Outcome.FINISHED)


@contextmanager
def no_file_longer_than(num_bytes: int) -> Iterator[None]:
    """As when the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
