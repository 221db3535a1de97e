"""Limits, their buckets, what each gateway process has been lent of them, and those processes' lives."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    func,
)

from gateway.db import metadata
from gateway.quotas.limits import QuotaKind, Scope
from gateway.tenants.tables import tenant

_KINDS = ", ".join(f"'{kind.value}'" for kind in QuotaKind)
_SCOPES = ", ".join(f"'{scope.value}'" for scope in Scope)

# A limit that is lifted keeps its row, without a value: what was used stays used should it come back.
quota_limit: Final = Table(
    "quota_limit",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("tenant_id", ForeignKey(tenant.c.id), nullable=False),
    Column("scope", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("model", Text),  # NULL: all models
    Column("request_class", Text),  # NULL: both classes
    Column("value", BigInteger),  # NULL: unlimited
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now(), index=True),
    UniqueConstraint(
        "tenant_id",
        "scope",
        "scope_id",
        "kind",
        "model",
        "request_class",
        name="uq_quota_limit_what",
        postgresql_nulls_not_distinct=True,
    ),
    CheckConstraint(f"kind in ({_KINDS})", name="kind_known"),
    CheckConstraint(f"scope in ({_SCOPES})", name="scope_known"),
    CheckConstraint("request_class in ('interactive', 'offline')", name="request_class_known"),
    CheckConstraint("value >= 0", name="value_not_negative"),
)

# One row per limit, or per limit and window. Its lock orders all that is lent of it; no index on what
# changes and the low fill factor keep updates within the page (HOT).
quota_bucket: Final = Table(
    "quota_bucket",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("limit_id", ForeignKey(quota_limit.c.id), nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("window_start", DateTime(timezone=True), nullable=False),  # -infinity: it has no window
    Column("capacity", Double, nullable=False),
    Column("available", Double, nullable=False),  # negative after a limit was lowered
    Column("outstanding", Double, nullable=False, server_default="0"),  # lent to replicas
    Column("refilled_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("wanted_until", DateTime(timezone=True), nullable=False, server_default="-infinity"),
    UniqueConstraint("limit_id", "window_start"),
    postgresql_with={"fillfactor": 50},
)

# No foreign keys: rows live for seconds, and each check would lock the bucket's row.
quota_lease: Final = Table(
    "quota_lease",
    metadata,
    Column("bucket_id", BigInteger, primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("granted", Double, nullable=False),  # lent and neither given back nor told as used
    Column("idle", Double, nullable=False),  # of that, held by nobody when it was last told
    Index(None, "epoch"),
    postgresql_with={"fillfactor": 50},
)

# One row per life of a gateway process. `exchange_number` tells whether an exchange whose answer was lost
# took effect. From `fenced_at` on the life is over, whether its process knows or not.
replica: Final = Table(
    "replica",
    metadata,
    Column("epoch", BigInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False),
    Column("heartbeat_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("exchange_number", BigInteger, nullable=False, server_default="0"),
    Column("fenced_at", DateTime(timezone=True)),
)

# How many requests of a tenant a replica serves right now, for those who look.
replica_load: Final = Table(
    "replica_load",
    metadata,
    Column("epoch", BigInteger, primary_key=True),
    Column("tenant_id", Text, primary_key=True),
    Column("num_live", Integer, nullable=False),
)
