"""Who is calling: what a checked API key says, and nothing secret."""

from dataclasses import dataclass

from gateway.tenants.ids import KeyId, ProjectId, TenantId


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The tenant, project and key behind a request. `cache_group` None: it shares no cached prompts."""

    tenant: TenantId
    tenant_name: str
    project: ProjectId
    key: KeyId
    weight: float
    cache_group: str | None = None
