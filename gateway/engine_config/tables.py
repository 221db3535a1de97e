"""What engines should do, what they have in force, and their history, as stored."""

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Double, Index, Integer, Table, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB

from gateway.db import metadata

engine_config: Final = Table(
    "engine_config",
    metadata,
    Column("model", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("limits", JSONB, nullable=False, server_default=text("'{}'")),
    Column("weights", JSONB, nullable=False, server_default=text("'{}'")),
    Column("guardrails", JSONB, nullable=False, server_default=text("'{}'")),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

engine_instance: Final = Table(
    "engine_instance",
    metadata,
    Column("instance", Text, primary_key=True),  # one life of an engine process
    Column("address", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("config_revision", BigInteger, nullable=False),
    Column("config_error", Text),
    Column("limits", JSONB, nullable=False),
    Column("guardrail_mode", Text, nullable=False),
    Column("guardrail_level", Integer, nullable=False),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

engine_snapshot: Final = Table(
    "engine_snapshot",
    metadata,
    Column("instance", Text, primary_key=True),
    Column("at", DateTime(timezone=True), primary_key=True),  # the beginning of its 10 seconds
    Column("address", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("figures", JSONB, nullable=False),
    Index(None, "at"),
)

guardrail_event: Final = Table(
    "guardrail_event",
    metadata,
    Column("instance", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("address", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("from_level", Integer, nullable=False),
    Column("to_level", Integer, nullable=False),
    Column("measure", Text, nullable=False),
    Column("value", Double),
    Column("target", Double),
    Column("detail", Text, nullable=False),
    Column("is_dry_run", Boolean, nullable=False),
    Index(None, "at"),
)
