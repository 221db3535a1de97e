"""An API key as operators may see it."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gateway.tenants.ids import KeyId, ProjectId, TenantId


class KeyState(StrEnum):
    """Whether a key lets anybody in, and if not, why."""

    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


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

    def state(self, now: datetime) -> KeyState:
        """The state at a moment; a revoked key is revoked even after its end."""
        if self.revoked_at is not None:
            return KeyState.REVOKED
        is_over = self.expires_at is not None and self.expires_at <= now
        return KeyState.EXPIRED if is_over else KeyState.ACTIVE


@dataclass(frozen=True, kw_only=True)
class IssuedKey:
    """A new key with its secret, which is shown once and kept nowhere."""

    secret: str = field(repr=False)
    key: ApiKey
