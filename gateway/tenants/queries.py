"""All SQL of tenants and projects."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, RowMapping, Select, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.tenants.ids import ProjectId, TenantId
from gateway.tenants.project import FIRST_PROJECT, Project
from gateway.tenants.tables import project, tenant
from gateway.tenants.tenant import Tenant


async def add(
    connection: AsyncConnection, *, tenant_id: TenantId, project_id: ProjectId, name: str, weight: float
) -> Tenant:
    """Stores a new tenant with its first project. The name must be free."""
    rows = await connection.execute(
        insert(tenant).values(id=tenant_id, name=name, weight=weight).returning(tenant)
    )
    added = _tenant(rows.mappings().one())
    await add_project(connection, project_id=project_id, tenant_id=tenant_id, name=FIRST_PROJECT, weight=1.0)
    return added


async def find(connection: AsyncConnection, name_or_id: str, *, for_update: bool = False) -> Tenant | None:
    """By id or name; an id wins over another tenant's name."""
    found = (
        select(tenant)
        .where(or_(tenant.c.id == name_or_id, tenant.c.name == name_or_id))
        .order_by(tenant.c.id != name_or_id)
        .limit(1)
    )
    rows = await connection.execute(found.with_for_update() if for_update else found)
    row = rows.mappings().one_or_none()
    return None if row is None else _tenant(row)


async def name_is_taken(connection: AsyncConnection, name: str) -> bool:
    """Whether a tenant is called so."""
    return await connection.scalar(select(tenant.c.id).where(tenant.c.name == name)) is not None


async def all_by_name(connection: AsyncConnection) -> list[Tenant]:
    """Every tenant, in the order of names."""
    rows = await connection.execute(select(tenant).order_by(tenant.c.name))
    return [_tenant(row) for row in rows.mappings()]


async def page_by_name(
    connection: AsyncConnection, *, limit: int, after: TenantId | None
) -> Sequence[Tenant]:
    """At most `limit` tenants in the order of names; those behind the tenant `after`."""
    page = select(tenant).order_by(tenant.c.name).limit(limit)
    if after is not None:
        before = tenant.alias()
        page = page.where(tenant.c.name > select(before.c.name).where(before.c.id == after).scalar_subquery())
    rows = await connection.execute(page)
    return [_tenant(row) for row in rows.mappings()]


async def add_project(
    connection: AsyncConnection, *, project_id: ProjectId, tenant_id: TenantId, name: str, weight: float
) -> Project:
    """Stores a new project. The name must be free within its tenant."""
    await connection.execute(
        insert(project).values(id=project_id, tenant_id=tenant_id, name=name, weight=weight)
    )
    added = await find_project(connection, tenant_id, project_id)
    assert added is not None
    return added


async def find_project(connection: AsyncConnection, tenant_id: TenantId, name_or_id: str) -> Project | None:
    """A tenant's project by id or name; an id wins over another project's name."""
    rows = await connection.execute(
        _projects()
        .where(project.c.tenant_id == tenant_id)
        .where(or_(project.c.id == name_or_id, project.c.name == name_or_id))
        .order_by(project.c.id != name_or_id)
        .limit(1)
    )
    row = rows.mappings().one_or_none()
    return None if row is None else _project(row)


async def first_project(connection: AsyncConnection, tenant_id: TenantId) -> Project:
    """The project a tenant was made with."""
    rows = await connection.execute(
        _projects()
        .where(project.c.tenant_id == tenant_id)
        .order_by(project.c.created_at, project.c.id)
        .limit(1)
    )
    return _project(rows.mappings().one())


async def set_project_weight(
    connection: AsyncConnection, tenant_id: TenantId, project_id: ProjectId, weight: float
) -> Project:
    """Changes a project's share within its tenant; key caches see the change by `updated_at`."""
    await connection.execute(
        update(project)
        .where(project.c.tenant_id == tenant_id, project.c.id == project_id)
        .values(weight=weight, updated_at=func.now())
    )
    changed = await find_project(connection, tenant_id, project_id)
    assert changed is not None
    return changed


async def projects_of(connection: AsyncConnection, tenant_id: TenantId | None) -> Sequence[Project]:
    """A tenant's projects, or everybody's, in the order of names."""
    found = _projects().order_by(tenant.c.name, project.c.name)
    if tenant_id is not None:
        found = found.where(project.c.tenant_id == tenant_id)
    rows = await connection.execute(found)
    return [_project(row) for row in rows.mappings()]


async def get_project(
    connection: AsyncConnection, project_id: ProjectId, *, for_update: bool = False
) -> Project | None:
    """By id, whoever it belongs to: for operators."""
    found = _projects().where(project.c.id == project_id)
    rows = await connection.execute(found.with_for_update(of=project) if for_update else found)
    row = rows.mappings().one_or_none()
    return None if row is None else _project(row)


async def page_of_projects(
    connection: AsyncConnection, tenant_id: TenantId | None, *, limit: int, after: ProjectId | None
) -> Sequence[Project]:
    """At most `limit` projects of a tenant, or of everybody, in the order of names; those behind `after`."""
    found = _projects().order_by(tenant.c.name, project.c.name).limit(limit)
    if tenant_id is not None:
        found = found.where(project.c.tenant_id == tenant_id)
    if after is not None:
        last, owner = project.alias(), tenant.alias()
        place = select(owner.c.name, last.c.name).join(owner, owner.c.id == last.c.tenant_id)
        found = found.where(
            tuple_(tenant.c.name, project.c.name) > place.where(last.c.id == after).scalar_subquery()
        )
    rows = await connection.execute(found)
    return [_project(row) for row in rows.mappings()]


async def set_enabled(connection: AsyncConnection, tenant_id: TenantId, *, enabled: bool) -> Tenant:
    """Marks a tenant as served or not; key caches see the change by `updated_at`."""
    disabled_at: ColumnElement[object] | None = (
        None if enabled else func.coalesce(tenant.c.disabled_at, func.now())
    )
    return await _update(connection, tenant_id, disabled_at=disabled_at)


async def set_weight(connection: AsyncConnection, tenant_id: TenantId, weight: float) -> Tenant:
    """Changes a tenant's share; key caches see the change by `updated_at`."""
    return await _update(connection, tenant_id, weight=weight)


async def set_cache_group(
    connection: AsyncConnection, tenant_id: TenantId, cache_group: str | None
) -> Tenant:
    """Puts a tenant into a group, or into none; key caches see the change by `updated_at`."""
    return await _update(connection, tenant_id, cache_group=cache_group)


async def _update(connection: AsyncConnection, tenant_id: TenantId, **values: object) -> Tenant:
    rows = await connection.execute(
        update(tenant)
        .where(tenant.c.id == tenant_id)
        .values(**values, updated_at=func.now())
        .returning(tenant)
    )
    return _tenant(rows.mappings().one())


def _tenant(row: RowMapping) -> Tenant:
    return Tenant(
        id=TenantId(row["id"]),
        name=row["name"],
        weight=row["weight"],
        disabled_at=row["disabled_at"],
        created_at=row["created_at"],
        cache_group=row["cache_group"],
    )


def _projects() -> Select[tuple[object, ...]]:
    return select(*project.c, tenant.c.name.label("tenant_name")).join(
        tenant, tenant.c.id == project.c.tenant_id
    )


def _project(row: RowMapping) -> Project:
    return Project(
        id=ProjectId(row["id"]),
        tenant=TenantId(row["tenant_id"]),
        tenant_name=row["tenant_name"],
        name=row["name"],
        weight=row["weight"],
        created_at=row["created_at"],
    )
