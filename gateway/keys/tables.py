"""API keys, as stored: a digest and a redacted form of each secret, never a secret.

`previous_…` is the secret before the last rotation: it lets in until its end.
"""

from typing import Final

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    Table,
    Text,
    func,
    text,
)

from gateway.db import metadata
from gateway.keys.scope import Scope
from gateway.tenants.tables import project, tenant

api_key: Final = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),  # the public part of the key
    Column("tenant_id", ForeignKey(tenant.c.id), nullable=False, index=True),
    Column("project_id", ForeignKey(project.c.id), nullable=False),
    Column("name", Text, nullable=False),
    Column("weight", Double, nullable=False, server_default=text("1")),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("redacted_value", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False, server_default=f"{{{','.join(Scope)}}}"),
    Column("models", ARRAY(Text)),  # null: all
    Column("previous_secret_hash", LargeBinary),
    Column("previous_redacted_value", Text),
    Column("previous_expires_at", DateTime(timezone=True)),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now(), index=True),
    Index(None, "created_at", "id"),
    CheckConstraint("weight > 0", name="weight_positive"),
)
