"""A tenant: one organisation that shares the model with others."""

from dataclasses import dataclass
from datetime import datetime

from gateway.tenants.ids import TenantId


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """`weight` is its share relative to others; `disabled_at` None means it is served.

    Tenants of one `cache_group` share the engines' memory of their system prompts; None: it shares nothing.
    """

    id: TenantId
    name: str
    weight: float
    disabled_at: datetime | None
    created_at: datetime
    cache_group: str | None = None
