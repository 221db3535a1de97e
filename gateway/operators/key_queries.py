"""All SQL of operator keys. They belong to no tenant, so no statement here names one."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import RowMapping, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.operators.operator_key import OperatorKey
from gateway.operators.scopes import OperatorScope
from gateway.operators.tables import operator_key

LAST_USED_RESOLUTION: Final = timedelta(minutes=1)  # a use within it writes nothing

_VISIBLE: Final = tuple(column for column in operator_key.c if column is not operator_key.c.digest)


@dataclass(frozen=True, kw_only=True)
class OperatorKeyRecord:
    """What a presented key is checked against, by the store's clock."""

    name: str
    scopes: frozenset[OperatorScope]
    digest: bytes = field(repr=False)
    is_revoked: bool
    is_expired: bool


async def record(connection: AsyncConnection, key: str) -> OperatorKeyRecord | None:
    """The key of this public id."""
    rows = await connection.execute(
        select(
            operator_key.c.name,
            operator_key.c.scopes,
            operator_key.c.digest,
            operator_key.c.revoked_at.is_not(None).label("is_revoked"),
            func.coalesce(operator_key.c.expires_at <= func.now(), False).label("is_expired"),
        ).where(operator_key.c.id == key)
    )
    row = rows.mappings().one_or_none()
    if row is None:
        return None
    return OperatorKeyRecord(**{**row, "scopes": frozenset(_scopes(row)), "digest": bytes(row["digest"])})


async def mark_used(connection: AsyncConnection, key: str) -> None:
    """Stores that the key was used just now, if that is news."""
    last = operator_key.c.last_used_at
    is_news = or_(last.is_(None), last < func.now() - LAST_USED_RESOLUTION)
    await connection.execute(
        update(operator_key).where(operator_key.c.id == key, is_news).values(last_used_at=func.now())
    )


async def add(
    connection: AsyncConnection,
    *,
    key: str,
    name: str,
    scopes: Collection[OperatorScope],
    digest: bytes,
    redacted_value: str,
    expires_at: datetime | None,
) -> OperatorKey:
    """Stores a new key; a name that is taken is an IntegrityError."""
    rows = await connection.execute(
        insert(operator_key)
        .values(
            id=key,
            name=name,
            scopes=sorted(scopes),
            digest=digest,
            redacted_value=redacted_value,
            expires_at=expires_at,
        )
        .returning(*_VISIBLE)
    )
    return _operator_key(rows.mappings().one())


async def find(
    connection: AsyncConnection, name_or_id: str, *, for_update: bool = False
) -> OperatorKey | None:
    """By id or name; an id wins over another key's name."""
    found = (
        select(*_VISIBLE)
        .where(or_(operator_key.c.id == name_or_id, operator_key.c.name == name_or_id))
        .order_by(operator_key.c.id != name_or_id)
        .limit(1)
    )
    rows = await connection.execute(found.with_for_update() if for_update else found)
    row = rows.mappings().one_or_none()
    return None if row is None else _operator_key(row)


async def all_by_name(connection: AsyncConnection) -> Sequence[OperatorKey]:
    """Every key, whether it lets anybody in or not."""
    rows = await connection.execute(select(*_VISIBLE).order_by(operator_key.c.name))
    return [_operator_key(row) for row in rows.mappings()]


async def revoke(connection: AsyncConnection, key: str) -> OperatorKey:
    """Ends a key now."""
    rows = await connection.execute(
        update(operator_key)
        .where(operator_key.c.id == key)
        .values(revoked_at=func.now())
        .returning(*_VISIBLE)
    )
    return _operator_key(rows.mappings().one())


def _operator_key(row: RowMapping) -> OperatorKey:
    return OperatorKey(**{**row, "scopes": _scopes(row)})


def _scopes(row: RowMapping) -> tuple[OperatorScope, ...]:
    """In the order of their definition; one that only a newer version knows is left out."""
    return tuple(scope for scope in OperatorScope if scope in row["scopes"])
