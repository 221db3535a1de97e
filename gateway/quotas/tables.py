"""Limits, buckets, what live requests hold of them, and the gateway processes that hold it."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Integer,
    Table,
    Text,
    func,
)

from gateway.db import metadata
from gateway.tenants.tables import tenant

quota_limit: Final = Table(
    "quota_limit",
    metadata,
    Column("tenant_id", ForeignKey(tenant.c.id), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
    CheckConstraint("kind in ('concurrent_requests', 'tokens_per_minute')", name="kind_known"),
    CheckConstraint("value >= 0", name="value_not_negative"),
)

# Its row lock orders all claims of a tenant. The low fill factor keeps updates within the page (HOT).
quota_bucket: Final = Table(
    "quota_bucket",
    metadata,
    Column("tenant_id", ForeignKey(tenant.c.id), primary_key=True),
    Column("available", Double, nullable=False),  # tokens
    Column("refilled_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    postgresql_with={"fillfactor": 50},
)

# One row per live request: concurrency in use is the number of a tenant's rows.
# No foreign keys: rows live for seconds, and each check would lock the tenant's row.
reservation: Final = Table(
    "reservation",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False, index=True),
    Column("project_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("request_class", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("tokens", Integer),  # held from the bucket; NULL when no token limit applied
    Column("admitted_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

replica: Final = Table(
    "replica",
    metadata,
    Column("epoch", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False),
    Column("heartbeat_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)
