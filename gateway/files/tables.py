"""Files, as stored: what they are. What is in them lies in the file store, under `blob`."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    func,
)

from gateway.db import metadata
from gateway.files.purpose import Purpose
from gateway.tenants.tables import tenant

_PURPOSES: Final = ", ".join(f"'{purpose.value}'" for purpose in Purpose)

file: Final = Table(
    "file",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", ForeignKey(tenant.c.id), nullable=False),
    Column("project_id", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("blob", Text, nullable=False),
    Column("idempotency_key", Text),  # the caller's: the same upload again is the same file
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True)),  # null: never
    UniqueConstraint("tenant_id", "project_id", "idempotency_key"),
    Index(None, "tenant_id", "project_id", "created_at", "id"),
    Index(None, "expires_at"),
    CheckConstraint(f"purpose in ({_PURPOSES})", name="purpose_known"),
)
