"""Who is calling and what for: what a checked API key says, and nothing secret."""

from dataclasses import dataclass

from gateway.errors import PermissionDenied
from gateway.keys.scope import Scope
from gateway.tenants.ids import KeyId, ProjectId, TenantId


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The tenant, project and key behind a request, each with its weight among its siblings.

    `models` are those that exist for it; None: all. `cache_group` None: it shares no cached prompts.
    """

    tenant: TenantId
    tenant_name: str
    project: ProjectId
    project_name: str
    key: KeyId
    weight: float
    project_weight: float = 1.0
    key_weight: float = 1.0
    scopes: frozenset[Scope]
    models: frozenset[str] | None = None
    cache_group: str | None = None

    def require(self, scope: Scope) -> None:
        """Raises PermissionDenied where the key lacks `scope`."""
        if scope not in self.scopes:
            raise PermissionDenied(f"This API key lacks the scope that the request needs: {scope}.")
