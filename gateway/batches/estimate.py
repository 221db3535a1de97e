"""When a batch will be done, as far as can be told. Pure."""

from gateway.batches.batch import Batch
from gateway.batches.status import BatchStatus


def estimated_completion(batch: Batch, *, now: float) -> int | None:
    """The Unix time at which its last line will be done at the pace of late; None: nobody knows."""
    if batch.status is not BatchStatus.IN_PROGRESS or not batch.items_per_second:
        return None
    return round(now + batch.num_left / batch.items_per_second)
