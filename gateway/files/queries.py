"""All SQL of files. It decides nothing and opens no transaction.

Whoever makes use of a file in a transaction keeps it until the end of it (`find` with `keep`): removing one
waits for that, and then sees what it was used for.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import RowMapping, func, select, tuple_, update
from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.files.file import StoredFile
from gateway.files.ids import FileId
from gateway.files.purpose import Purpose
from gateway.files.tables import file
from gateway.tenants.ids import ProjectId, TenantId
from gateway.tenants.tables import tenant


async def insert(connection: AsyncConnection, new: StoredFile, *, idempotency_key: str | None = None) -> None:
    """Stores a file whose blob is whole. The key must be free within its project."""
    await connection.execute(
        insert_into(file).values(
            id=new.id,
            tenant_id=new.tenant,
            project_id=new.project,
            purpose=new.purpose.value,
            filename=new.filename,
            num_bytes=new.num_bytes,
            sha256=new.sha256,
            blob=new.blob,
            idempotency_key=idempotency_key,
            created_at=new.created_at,
            expires_at=new.expires_at,
        )
    )


async def find(
    connection: AsyncConnection,
    tenant_id: TenantId,
    project: ProjectId,
    file_id: FileId,
    *,
    keep: bool = False,
) -> StoredFile | None:
    """A project's file. With `keep` it stays until the transaction ends."""
    found = select(file).where(
        file.c.tenant_id == tenant_id, file.c.project_id == project, file.c.id == file_id
    )
    rows = await connection.execute(found.with_for_update(read=True, key_share=True) if keep else found)
    row = rows.mappings().one_or_none()
    return None if row is None else _file(row)


async def find_to_remove(
    connection: AsyncConnection, tenant_id: TenantId, project: ProjectId, file_id: FileId
) -> StoredFile | None:
    """A project's file, once nobody keeps it: what it was used for can be seen by the next statement."""
    rows = await connection.execute(
        select(file)
        .where(file.c.tenant_id == tenant_id, file.c.project_id == project, file.c.id == file_id)
        .with_for_update()
    )
    row = rows.mappings().one_or_none()
    return None if row is None else _file(row)


async def find_by_idempotency_key(
    connection: AsyncConnection, tenant_id: TenantId, project: ProjectId, key: str, *, since: datetime
) -> StoredFile | None:
    """What a project stored under a key of its own, if that was after `since`."""
    rows = await connection.execute(
        select(file)
        .where(file.c.tenant_id == tenant_id, file.c.project_id == project, file.c.idempotency_key == key)
        .where(file.c.created_at > since)
    )
    row = rows.mappings().one_or_none()
    return None if row is None else _file(row)


async def free_idempotency_key(
    connection: AsyncConnection, tenant_id: TenantId, project: ProjectId, key: str, *, until: datetime
) -> None:
    """Lets a key go that was used at `until` or before."""
    await connection.execute(
        update(file)
        .where(file.c.tenant_id == tenant_id, file.c.project_id == project, file.c.idempotency_key == key)
        .where(file.c.created_at <= until)
        .values(idempotency_key=None)
    )


async def page(
    connection: AsyncConnection,
    tenant_id: TenantId,
    project: ProjectId,
    *,
    purpose: Purpose | None,
    limit: int,
    after: StoredFile | None,
    newest_first: bool,
) -> Sequence[StoredFile]:
    """At most `limit` of a project's files by age; those behind `after`."""
    place = tuple_(file.c.created_at, file.c.id)
    found = select(file).where(file.c.tenant_id == tenant_id, file.c.project_id == project).limit(limit)
    if purpose is not None:
        found = found.where(file.c.purpose == purpose.value)
    if after is not None:
        seen = (after.created_at, after.id)
        found = found.where(place < seen if newest_first else place > seen)
    columns = (file.c.created_at, file.c.id)
    order = [column.desc() for column in columns] if newest_first else columns
    rows = await connection.execute(found.order_by(*order))
    return [_file(row) for row in rows.mappings()]


async def delete(
    connection: AsyncConnection, tenant_id: TenantId, project: ProjectId, file_id: FileId
) -> None:
    """Forgets a project's file; its blob is to be removed when that is committed."""
    await connection.execute(
        delete_from(file).where(
            file.c.tenant_id == tenant_id, file.c.project_id == project, file.c.id == file_id
        )
    )


# --- how much there is -------------------------------------------------------------------------------------


async def lock_storage(connection: AsyncConnection, tenant_id: TenantId) -> None:
    """From here to the end of the transaction nobody else adds to what the tenant has."""
    await connection.execute(
        select(tenant.c.id).where(tenant.c.id == tenant_id).with_for_update(key_share=True)
    )


async def stored_bytes(connection: AsyncConnection, tenant_id: TenantId) -> dict[ProjectId, int]:
    """How much each project of a tenant has stored; those with nothing are absent."""
    rows = await connection.execute(
        select(file.c.project_id, func.sum(file.c.num_bytes))
        .where(file.c.tenant_id == tenant_id)
        .group_by(file.c.project_id)
    )
    return {ProjectId(project): int(num_bytes) for project, num_bytes in rows}


# --- the sweep: of all tenants -----------------------------------------------------------------------------


async def lock_expired(connection: AsyncConnection, *, limit: int) -> Sequence[StoredFile]:
    """At most `limit` files whose time is over and that nobody keeps, longest expired first."""
    rows = await connection.execute(
        select(file)
        .where(file.c.expires_at <= func.now())
        .order_by(file.c.expires_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [_file(row) for row in rows.mappings()]


async def put_off(connection: AsyncConnection, file_ids: Collection[FileId], until: datetime) -> None:
    """Files expire later than was said."""
    await connection.execute(update(file).where(file.c.id.in_(file_ids)).values(expires_at=until))


async def delete_all(connection: AsyncConnection, file_ids: Collection[FileId]) -> None:
    """Forgets files, whoever they belong to."""
    await connection.execute(delete_from(file).where(file.c.id.in_(file_ids)))


async def unclaimed(connection: AsyncConnection, tenant_id: TenantId, blobs: Collection[str]) -> set[str]:
    """Those of a tenant's blobs that no file has. Blobs of a tenant that is not ours are never among them."""
    known = await connection.scalar(select(tenant.c.id).where(tenant.c.id == tenant_id))
    if known is None:
        return set()
    rows = await connection.execute(
        select(file.c.blob).where(file.c.tenant_id == tenant_id, file.c.blob.in_(blobs))
    )
    return set(blobs) - set(rows.scalars())


def _file(row: RowMapping) -> StoredFile:
    return StoredFile(
        id=FileId(row["id"]),
        tenant=TenantId(row["tenant_id"]),
        project=ProjectId(row["project_id"]),
        purpose=Purpose(row["purpose"]),
        filename=row["filename"],
        num_bytes=row["num_bytes"],
        sha256=bytes(row["sha256"]),
        blob=row["blob"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )
