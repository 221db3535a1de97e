"""A project: a part of a tenant that has keys of its own."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gateway.tenants.ids import ProjectId, TenantId

FIRST_PROJECT: Final = "default"  # every tenant is made with one of this name


@dataclass(frozen=True, kw_only=True)
class Project:
    """Its name is unique within its tenant; `weight` is its share relative to the tenant's other projects."""

    id: ProjectId
    tenant: TenantId
    tenant_name: str
    name: str
    weight: float
    created_at: datetime
