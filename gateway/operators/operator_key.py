"""A key that lets a program of an operator into the management API."""

from dataclasses import dataclass, field
from datetime import datetime

from gateway.errors import PermissionDenied
from gateway.operators.scopes import OperatorScope


@dataclass(frozen=True, kw_only=True)
class OperatorKey:
    """As operators may see it: nothing here lets anybody in. None: never, or not yet."""

    id: str
    name: str
    scopes: tuple[OperatorScope, ...]
    redacted_value: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class IssuedOperatorKey:
    """A new key with its secret, which is shown once and kept nowhere."""

    secret: str = field(repr=False)
    key: OperatorKey


@dataclass(frozen=True, kw_only=True)
class OperatorCaller:
    """Whose program is calling, and what it may do."""

    name: str
    scopes: frozenset[OperatorScope]

    @property
    def actor(self) -> str:
        """The name in the audit trail."""
        return f"operator key {self.name}"

    def require(self, scope: OperatorScope) -> None:
        """Raises PermissionDenied, naming the scope, unless the key has it."""
        if scope not in self.scopes:
            raise PermissionDenied(f"The operator key {self.name!r} lacks the scope '{scope}'.")
