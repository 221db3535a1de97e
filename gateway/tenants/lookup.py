"""Finds the tenant or project that an operator names, or says in a line that there is none."""

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.tenants import queries
from gateway.tenants.errors import NoSuchThing
from gateway.tenants.project import Project
from gateway.tenants.tenant import Tenant


async def tenant_called(connection: AsyncConnection, name_or_id: str, *, for_update: bool = False) -> Tenant:
    """The tenant, by name or id. Raises NoSuchThing."""
    tenant = await queries.find(connection, name_or_id, for_update=for_update)
    if tenant is None:
        raise NoSuchThing(f"There is no tenant {name_or_id!r}.")
    return tenant


async def project_called(connection: AsyncConnection, tenant: Tenant, name_or_id: str | None) -> Project:
    """A tenant's project, by name or id; None: its first. Raises NoSuchThing."""
    if name_or_id is None:
        return await queries.first_project(connection, tenant.id)
    project = await queries.find_project(connection, tenant.id, name_or_id)
    if project is None:
        raise NoSuchThing(f"The tenant {tenant.name!r} has no project {name_or_id!r}.")
    return project
