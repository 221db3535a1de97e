"""What was done for each gateway's life, kept a while for gateways that come back to settle."""

import time
from collections import OrderedDict
from collections.abc import Callable

from engine.protocol import RequestRecord

MAX_RECORDS = 50_000
REMEMBERED_SECONDS = 600.0  # who asks does so seconds after a gateway died, or when the store is back


class Ledger:
    """Ended requests by the epoch of the gateway that sent them; the oldest are forgotten."""

    def __init__(
        self, max_records: int = MAX_RECORDS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_records = max_records
        self._clock = clock
        self._records: OrderedDict[tuple[int, str], tuple[float, RequestRecord]] = OrderedDict()

    def add(self, epoch: int, record: RequestRecord) -> None:
        """Remembers an ended request."""
        now = self._clock()
        self._records[epoch, record.id] = now, record
        while self._is_full(now):
            self._records.popitem(last=False)

    def of_epoch(self, epoch: int) -> tuple[RequestRecord, ...]:
        """Every remembered request of one life of a gateway."""
        return tuple(record for (other, _), (_, record) in self._records.items() if other == epoch)

    def _is_full(self, now: float) -> bool:
        ended_at, _ = next(iter(self._records.values()))
        return len(self._records) > self._max_records or now - ended_at > REMEMBERED_SECONDS
