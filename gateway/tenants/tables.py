"""Tenants and their projects, as stored."""

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)

from gateway.db import metadata

tenant: Final = Table(
    "tenant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("weight", Double, nullable=False),
    Column("cache_group", Text),
    Column("disabled_at", DateTime(timezone=True)),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now(), index=True),
    CheckConstraint("weight > 0", name="weight_positive"),
)

project: Final = Table(
    "project",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", ForeignKey(tenant.c.id), nullable=False),
    Column("name", Text, nullable=False),
    Column("weight", Double, nullable=False, server_default=text("1")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now(), index=True),
    UniqueConstraint("tenant_id", "name"),
    CheckConstraint("weight > 0", name="weight_positive"),
)
