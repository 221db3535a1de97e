"""A batch as its owner may see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gateway.batches.faults import Fault
from gateway.batches.ids import BatchId
from gateway.batches.status import BatchStatus, EndsAs
from gateway.tenants.ids import KeyId, ProjectId, TenantId


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a batch was asked to be. `output_expires_after_seconds` None: as long as outputs are kept."""

    tenant: TenantId
    project: ProjectId
    key: KeyId
    endpoint: str
    input_file: str
    input_blob: str
    completion_window: str
    window_seconds: int
    output_expires_after_seconds: int | None = None
    metadata: Mapping[str, str] | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch. Counts are of lines; the tokens of finished ones. `None`: not yet, or never.

    `enqueued_tokens` are the prompts' of all its lines. `items_per_second` is how fast it went of late.
    """

    id: BatchId
    tenant: TenantId
    project: ProjectId
    key: KeyId
    endpoint: str
    model: str | None
    input_file: str
    input_blob: str
    completion_window: str
    output_expires_after_seconds: int | None
    metadata: Mapping[str, str] | None
    status: BatchStatus
    ends_as: EndsAs | None
    faults: tuple[Fault, ...]
    output_file: str | None
    error_file: str | None
    num_items: int
    num_completed: int
    num_failed: int
    enqueued_tokens: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    items_per_second: float | None
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None

    @property
    def num_failed_so_far(self) -> int:
        """Lines without an answer: once it ended early, those that were never run are among them."""
        if self.status in (BatchStatus.EXPIRED, BatchStatus.CANCELLED):
            return self.num_items - self.num_completed
        return self.num_failed

    @property
    def num_left(self) -> int:
        """Lines that have no result yet."""
        return self.num_items - self.num_completed - self.num_failed
