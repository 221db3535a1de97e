"""An API key as operators may see it."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypedDict

from gateway.keys.scope import Scope
from gateway.tenants.ids import KeyId, ProjectId, TenantId


class KeyState(StrEnum):
    """Whether a key lets anybody in, and if not, why."""

    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


class KeyTerms(TypedDict, total=False):
    """What of a key may change; what is absent stays. `models` None: all; `expires_at` None: without end."""

    name: str
    weight: float
    scopes: tuple[Scope, ...]
    models: tuple[str, ...] | None
    expires_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """`redacted_value` tells keys apart; nothing here lets anybody in. None: never, or not yet.

    `weight` is its share relative to its project's other keys.

    `models` None: all of them. After a rotation, `previous_…` is the secret before it and when that ends.
    """

    id: KeyId
    tenant: TenantId
    tenant_name: str
    project: ProjectId
    project_name: str
    name: str
    weight: float
    redacted_value: str
    scopes: tuple[Scope, ...]
    models: tuple[str, ...] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    previous_redacted_value: str | None
    previous_expires_at: datetime | None

    def state(self, now: datetime) -> KeyState:
        """The state at a moment; a revoked key is revoked even after its end."""
        if self.revoked_at is not None:
            return KeyState.REVOKED
        is_over = self.expires_at is not None and self.expires_at <= now
        return KeyState.EXPIRED if is_over else KeyState.ACTIVE

    def overlap_ends_at(self, now: datetime) -> datetime | None:
        """Until when two secrets let in; None where only one does, or none."""
        ends_at = self.previous_expires_at
        is_running = self.state(now) is KeyState.ACTIVE and ends_at is not None and now < ends_at
        return ends_at if is_running else None


@dataclass(frozen=True, kw_only=True)
class IssuedKey:
    """A key with its new secret, which is shown once and kept nowhere."""

    secret: str = field(repr=False)
    key: ApiKey
