"""The people who may use the admin pages, and keys of their programs; secrets are stored as digests."""

from typing import Final

from sqlalchemy import ARRAY, Column, DateTime, ForeignKey, LargeBinary, Table, Text, func

from gateway.db import metadata

operator: Final = Table(
    "operator",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("password_hash", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

operator_invite: Final = Table(
    "operator_invite",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("used_at", DateTime(timezone=True)),
)

operator_session: Final = Table(
    "operator_session",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("operator_id", ForeignKey(operator.c.id, ondelete="CASCADE"), nullable=False, index=True),
    Column("csrf_token", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("last_seen_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

operator_key: Final = Table(
    "operator_key",
    metadata,
    Column("id", Text, primary_key=True),  # the public part of the key
    Column("name", Text, nullable=False, unique=True),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("redacted_value", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    Column("last_used_at", DateTime(timezone=True)),
)
