"""What was done for each gateway's life, kept a while for gateways that come back to settle."""

from collections import OrderedDict

from engine.protocol import RequestRecord

MAX_RECORDS = 50_000


class Ledger:
    """Ended requests by the epoch of the gateway that sent them; the oldest are forgotten first."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._max_records = max_records
        self._records: OrderedDict[tuple[int, str], RequestRecord] = OrderedDict()

    def add(self, epoch: int, record: RequestRecord) -> None:
        """Remembers an ended request."""
        self._records[epoch, record.id] = record
        if len(self._records) > self._max_records:
            self._records.popitem(last=False)

    def of_epoch(self, epoch: int) -> tuple[RequestRecord, ...]:
        """Every remembered request of one life of a gateway."""
        return tuple(record for (other, _), record in self._records.items() if other == epoch)
