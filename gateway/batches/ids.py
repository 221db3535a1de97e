"""Names of batches and of their items' requests."""

import secrets
from typing import Final, NewType

BatchId = NewType("BatchId", str)
LeaseKey = tuple[BatchId, int, int]  # a line, and which of its leases: the number of its attempt

_RANDOM_BYTES: Final = 16  # nobody guesses one


def new_batch_id() -> BatchId:
    """A name that no batch has."""
    return BatchId(f"batch_{secrets.token_hex(_RANDOM_BYTES)}")


def request_id_of(batch: BatchId, line: int) -> str:
    """The name under which an item's request is run, charged and answered; always the same for an item."""
    return f"batch_req_{batch.removeprefix('batch_')}_{line}"
