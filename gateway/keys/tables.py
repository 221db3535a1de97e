"""API keys, as stored: a digest and a redacted form, never a secret."""

from typing import Final

from sqlalchemy import Column, DateTime, ForeignKey, LargeBinary, Table, Text, func

from gateway.db import metadata
from gateway.tenants.tables import project, tenant

api_key: Final = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),  # the public part of the key
    Column("tenant_id", ForeignKey(tenant.c.id), nullable=False, index=True),
    Column("project_id", ForeignKey(project.c.id), nullable=False),
    Column("name", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("redacted_value", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now(), index=True),
)
