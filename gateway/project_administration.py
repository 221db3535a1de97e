"""What operators may do to projects: each change and its audit row in one transaction.

Raises AdministrationError with a line for the operator, or StoreUnavailable.
"""

import secrets
from collections.abc import Sequence

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.audit import queries as audit
from gateway.db import Database
from gateway.tenants import queries as tenants
from gateway.tenants.errors import AlreadyExists, NoSuchThing
from gateway.tenants.ids import ProjectId
from gateway.tenants.lookup import project_called, tenant_called
from gateway.tenants.names import checked_name
from gateway.tenants.project import Project
from gateway.tenants.tenant import Tenant
from gateway.tenants.weight import check_weight


async def create_project(
    database: Database, actor: str, tenant_name_or_id: str, name: str, *, weight: float = 1.0
) -> Project:
    """A new project of a tenant, for keys to belong to."""
    name = checked_name(name)
    check_weight(weight)
    try:
        async with database.system_transaction() as connection:
            tenant = await tenant_called(connection, tenant_name_or_id)
            return await _add_project(connection, actor, tenant, name, weight)
    except IntegrityError as error:
        raise AlreadyExists(f"{tenant_name_or_id!r} has a project called {name!r} already.") from error


async def list_projects(database: Database, tenant_name_or_id: str | None = None) -> Sequence[Project]:
    """A tenant's projects, or everybody's, by name."""
    async with database.system_transaction() as connection:
        if tenant_name_or_id is None:
            return await tenants.projects_of(connection, None)
        tenant = await tenant_called(connection, tenant_name_or_id)
        return await tenants.projects_of(connection, tenant.id)


async def page_of_projects(
    database: Database, tenant_name_or_id: str | None = None, *, limit: int, after: str | None = None
) -> Sequence[Project]:
    """At most `limit` projects of a tenant, or of everybody, by name; those behind the project `after`."""
    async with database.system_transaction() as connection:
        last = None if after is None else (await _existing(connection, ProjectId(after))).id
        tenant = None if tenant_name_or_id is None else await tenant_called(connection, tenant_name_or_id)
        return await tenants.page_of_projects(
            connection, None if tenant is None else tenant.id, limit=limit, after=last
        )


async def find_project(database: Database, tenant_name_or_id: str, name_or_id: str) -> Project:
    """A tenant's project, by name or id. Raises NoSuchThing."""
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, tenant_name_or_id)
        return await project_called(connection, tenant, name_or_id)


async def set_project_weight(database: Database, actor: str, project_id: ProjectId, weight: float) -> Project:
    """Changes a project's share of what its tenant gets; the next requests follow within two seconds."""
    check_weight(weight)
    async with database.system_transaction() as connection:
        old = await _existing(connection, project_id, for_update=True)
        if old.weight == weight:
            return old
        changed = await tenants.set_project_weight(connection, old.tenant, old.id, weight)
        await audit.record(
            connection,
            actor=actor,
            action="project.set_weight",
            subject=old.id,
            before={"weight": old.weight},
            after={"weight": weight},
        )
    return changed


async def _existing(
    connection: AsyncConnection, project_id: ProjectId, *, for_update: bool = False
) -> Project:
    project = await tenants.get_project(connection, project_id, for_update=for_update)
    if project is None:
        raise NoSuchThing(f"There is no project {project_id!r}.")
    return project


async def _add_project(
    connection: AsyncConnection, actor: str, tenant: Tenant, name: str, weight: float
) -> Project:
    project = await tenants.add_project(
        connection,
        project_id=ProjectId(f"proj_{secrets.token_hex(12)}"),
        tenant_id=tenant.id,
        name=name,
        weight=weight,
    )
    await audit.record(
        connection,
        actor=actor,
        action="project.create",
        subject=project.id,
        after={"tenant": tenant.id, "name": name, "weight": weight},
    )
    return project
