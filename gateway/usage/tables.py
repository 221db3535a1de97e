"""The ledger: one row per request that was admitted, written once."""

from typing import Final

from sqlalchemy import Column, DateTime, Index, Integer, Table, Text, func

from gateway.db import metadata

usage_event: Final = Table(
    "usage_event",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("project_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("request_class", Text, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("admitted_at", DateTime(timezone=True), nullable=False),
    Column("settled_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index(None, "tenant_id", "settled_at"),
)
