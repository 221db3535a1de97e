"""Identifiers of the store, kept apart by type."""

from typing import NewType

TenantId = NewType("TenantId", str)
ProjectId = NewType("ProjectId", str)
KeyId = NewType("KeyId", str)
StoreId = NewType("StoreId", str)
