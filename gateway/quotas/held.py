"""What the store remembers of a live request while it runs."""

from dataclasses import dataclass
from datetime import datetime

from engine.protocol import RequestClass
from gateway.tenants.ids import KeyId, ProjectId, TenantId


@dataclass(frozen=True, kw_only=True)
class Held:
    """One reservation row. `tokens` is what the bucket gave for it, None without a token limit."""

    request_id: str
    tenant: TenantId
    project: ProjectId
    key: KeyId
    model: str
    request_class: RequestClass
    tokens: int | None
    admitted_at: datetime
