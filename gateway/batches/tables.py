"""Batches, their items, and the items' results, as stored. Bodies of requests stay in the input file.

Lines are numbered from 1, as editors do.
"""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from gateway.batches.status import OPEN, BatchStatus, EndsAs, ItemState
from gateway.db import metadata
from gateway.tenants.tables import tenant

_STATUSES: Final = ", ".join(f"'{status.value}'" for status in BatchStatus)
_ENDS: Final = ", ".join(f"'{end.value}'" for end in EndsAs)
_STATES: Final = ", ".join(f"'{state.value}'" for state in ItemState)
_OPEN: Final = ", ".join(f"'{status.value}'" for status in BatchStatus if status in OPEN)


def _at(name: str) -> Column[datetime]:
    return Column(name, DateTime(timezone=True))


def _total(name: str, type_: type = BigInteger) -> Column[int]:
    return Column(name, type_, nullable=False, server_default="0")


batch: Final = Table(
    "batch",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", ForeignKey(tenant.c.id), nullable=False),
    Column("project_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),  # who submitted it, and on whose behalf its items run
    Column("endpoint", Text, nullable=False),
    Column("model", Text),  # of all its lines; null until they are validated
    Column("input_file_id", Text, nullable=False),
    Column("input_blob", Text, nullable=False),
    Column("completion_window", Text, nullable=False),
    Column("output_expires_after_seconds", Integer),  # null: as long as outputs are kept
    Column("metadata", JSONB),
    Column("idempotency_key", Text),  # the caller's: the same order again is the same batch
    Column("status", Text, nullable=False, server_default=BatchStatus.VALIDATING.value),
    Column("ends_as", Text),  # null while its lines are run
    Column("validator_epoch", BigInteger),  # the life that validates it, or did
    Column("errors", JSONB),  # what is wrong with its lines, as the wire shows it
    Column("output_file_id", Text),
    Column("error_file_id", Text),
    _total("num_items", Integer),
    _total("num_completed", Integer),
    _total("num_failed", Integer),
    _total("enqueued_tokens"),  # prompt tokens of all its lines
    _total("prompt_tokens"),
    _total("cached_tokens"),
    _total("completion_tokens"),
    Column("items_per_second", Double),  # of late; null until it is known
    Column("sampled_num", Integer),
    _at("sampled_at"),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    _at("in_progress_at"),
    _at("finalizing_at"),
    _at("completed_at"),
    _at("failed_at"),
    _at("expired_at"),
    _at("cancelling_at"),
    _at("cancelled_at"),
    UniqueConstraint("tenant_id", "project_id", "idempotency_key"),
    Index(None, "tenant_id", "project_id", "created_at", "id"),
    Index(None, "tenant_id", "created_at", "id"),  # these three: pages for operators
    Index(None, "status", "created_at", "id"),
    Index(None, "created_at", "id"),
    Index(None, "input_file_id"),
    Index("ix_batch_open", "status", "tenant_id", postgresql_where=text(f"status in ({_OPEN})")),
    Index(
        "ix_batch_validating",
        "tenant_id",
        "created_at",
        "id",
        postgresql_where=text(f"status = '{BatchStatus.VALIDATING}'"),
    ),
    CheckConstraint(f"status in ({_STATUSES})", name="status_known"),
    CheckConstraint(f"ends_as in ({_ENDS})", name="ends_as_known"),
)

# No foreign keys: a batch and its items come and go together, and each check would lock the batch's row.
batch_item: Final = Table(
    "batch_item",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("custom_id", Text, nullable=False),
    Column("first_byte", BigInteger, nullable=False),  # of its line in the input file
    Column("num_bytes", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("prefix", BigInteger, nullable=False),  # equal for prompts that begin alike: those run together
    Column("state", Text, nullable=False, server_default=ItemState.PENDING.value),
    Column("attempt", Integer, nullable=False, server_default="0"),  # how often it was claimed
    _at("not_before"),  # when it may be claimed again
    Column("lease_epoch", BigInteger),  # the life that runs it; its heartbeat is the lease's
    Index(
        "ix_batch_item_pending",
        "batch_id",
        "prefix",
        "line",
        postgresql_where=text(f"state = '{ItemState.PENDING}'"),
    ),
    Index(
        "ix_batch_item_leased",
        "lease_epoch",
        "batch_id",
        postgresql_where=text(f"state = '{ItemState.LEASED}'"),
    ),
    CheckConstraint(f"state in ({_STATES})", name="state_known"),
    postgresql_with={"fillfactor": 70},
)

batch_result: Final = Table(
    "batch_result",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("is_error", Boolean, nullable=False),  # whether it belongs into the error file
    Column("body", Text, nullable=False),  # the whole line, as the file will have it
)

# What each tenant's batches have been given, in tokens by weight; the tenant with least is next.
batch_share: Final = Table(
    "batch_share",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("served", Double, nullable=False),
)
