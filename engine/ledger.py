"""What was done for each gateway's life, kept a while for gateways that come back to settle.

Kept as bytes, in pages that are forgotten as a whole: tens of thousands of small objects that live for
minutes among those that live for one step would keep the process from giving any of that memory back.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from engine.protocol import RequestRecord

MAX_RECORDS: Final = 50_000
REMEMBERED_SECONDS: Final = 300.0  # who asks does so seconds after a gateway died, or when the store is back
PAGE_SECONDS: Final = REMEMBERED_SECONDS / 10
LENGTH_BYTES: Final = 4

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple[int, RequestRecord]).decode


class _Page:
    """Records one behind the other, each with its length."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.ended_at = began_at
        self.num_records = 0
        self._bytes = bytearray()

    def add(self, epoch: int, record: RequestRecord, *, now: float) -> None:
        encoded = _encode((epoch, record))
        self._bytes += len(encoded).to_bytes(LENGTH_BYTES)
        self._bytes += encoded
        self.num_records += 1
        self.ended_at = now

    def __iter__(self) -> Iterator[tuple[int, RequestRecord]]:
        rest = memoryview(bytes(self._bytes))
        while rest:
            end = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES])
            yield _decode(rest[LENGTH_BYTES:end])
            rest = rest[end:]


class Ledger:
    """Ended requests by the epoch of the gateway that sent them; the oldest are forgotten, page by page."""

    def __init__(
        self, max_records: int = MAX_RECORDS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_records = max_records
        self._clock = clock
        self._pages: deque[_Page] = deque()

    def add(self, epoch: int, record: RequestRecord) -> None:
        """Remembers an ended request. It is forgotten after five minutes, or half of one more."""
        now = self._clock()
        if self._needs_page(now):
            self._pages.append(_Page(now))
        self._pages[-1].add(epoch, record, now=now)
        while self._is_full(now):
            self._pages.popleft()

    def of_epoch(self, epoch: int) -> tuple[RequestRecord, ...]:
        """Every remembered request of one life of a gateway; of one that ended twice, its last end."""
        found = {record.id: record for page in self._pages for other, record in page if other == epoch}
        return tuple(found.values())

    def _needs_page(self, now: float) -> bool:
        """A page is small beside all that may be remembered, in time and in records."""
        if not self._pages:
            return True
        page = self._pages[-1]
        most = max(1, self._max_records // 10)
        return now - page.began_at >= PAGE_SECONDS or page.num_records >= most

    def _is_full(self, now: float) -> bool:
        """Whether the oldest page must go."""
        num_records = sum(page.num_records for page in self._pages)
        return num_records > self._max_records or now - self._pages[0].ended_at > REMEMBERED_SECONDS
