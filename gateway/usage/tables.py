"""The ledger: one row per request that was admitted, written once; and its sums per minute and per day.

All three are partitioned by time and kept as long as an operator wants; the partitions lie in the schema
`usage_partitions`, where only the functions of `migrations/versions/20261203_ledger.py` reach them.
"""

from typing import Any, Final

from sqlalchemy import BigInteger, Column, DateTime, Index, Table, Text, func

from gateway.db import metadata

store_identity: Final = Table("store_identity", metadata, Column("id", Text, primary_key=True))  # one row

usage_event: Final = Table(
    "usage_event",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("project_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("request_class", Text, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("admitted_at", DateTime(timezone=True), primary_key=True),  # of a request it never changes
    Column("settled_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index(None, "tenant_id", "settled_at"),
    postgresql_partition_by="RANGE (admitted_at)",
)


def _rollup(name: str) -> Table:
    """Sums of the events whose admission fell into a bucket of time."""

    def key(column: str, type_: Any = Text) -> Column[Any]:
        return Column(column, type_, primary_key=True)

    def total(column: str) -> Column[int]:
        return Column(column, BigInteger, nullable=False)

    return Table(
        name,
        metadata,
        key("bucket_start", DateTime(timezone=True)),  # in UTC, whatever the session's time zone
        key("tenant_id"),
        key("project_id"),
        key("key_id"),
        key("model"),
        key("request_class"),
        total("num_requests"),
        total("prompt_tokens"),
        total("cached_tokens"),
        total("completion_tokens"),
        Index(None, "tenant_id", "bucket_start"),
        postgresql_partition_by="RANGE (bucket_start)",
    )


usage_rollup_minute: Final = _rollup("usage_rollup_minute")
usage_rollup_day: Final = _rollup("usage_rollup_day")
