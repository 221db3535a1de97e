"""An API key as operators may see it."""

from dataclasses import dataclass, field
from datetime import datetime

from gateway.tenants.ids import KeyId, ProjectId, TenantId


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """`redacted_value` tells keys apart; nothing here lets anybody in. None: never, or not yet."""

    id: KeyId
    tenant: TenantId
    tenant_name: str
    project: ProjectId
    name: str
    redacted_value: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class IssuedKey:
    """A new key with its secret, which is shown once and kept nowhere."""

    secret: str = field(repr=False)
    key: ApiKey
