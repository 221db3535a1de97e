"""Who changed what, and when; rows are only ever added."""

from typing import Final

from sqlalchemy import BigInteger, Column, DateTime, Identity, Index, Table, Text, func
from sqlalchemy.dialects.postgresql import JSONB

from gateway.db import metadata

audit_event: Final = Table(
    "audit_event",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", JSONB(none_as_null=True)),
    Column("after", JSONB(none_as_null=True)),
    Index(None, "actor", "id"),
    Index(None, "subject", "id"),
)
