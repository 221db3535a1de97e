"""All SQL about operators, their invites and their sessions. Stores as given; decides nothing.

Operators belong to no tenant, so no statement here names one.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.operators.tables import operator, operator_invite, operator_session


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """An operator and the hash of the password."""

    id: str
    name: str
    password_hash: str


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """A session with its operator's name."""

    operator_id: str
    operator_name: str
    csrf_token: str
    last_seen_at: datetime
    expires_at: datetime


async def any_operator(connection: AsyncConnection) -> bool:
    """Whether there is an operator at all."""
    return bool(await connection.scalar(select(exists().select_from(operator))))


async def insert_operator(
    connection: AsyncConnection, *, id: str, name: str, password_hash: str, created_at: datetime
) -> None:
    """Stores a new operator; a name that is taken is an IntegrityError."""
    await connection.execute(
        insert(operator).values(id=id, name=name, password_hash=password_hash, created_at=created_at)
    )


async def find_operator(connection: AsyncConnection, name: str) -> OperatorRow | None:
    """By the name as it is stored."""
    statement = select(operator.c.id, operator.c.name, operator.c.password_hash).where(
        operator.c.name == name
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else OperatorRow(id=row.id, name=row.name, password_hash=row.password_hash)


async def insert_invite(
    connection: AsyncConnection, *, token_hash: bytes, created_at: datetime, expires_at: datetime
) -> None:
    """Stores a new invite."""
    await connection.execute(
        insert(operator_invite).values(token_hash=token_hash, created_at=created_at, expires_at=expires_at)
    )


async def delete_unused_invites(connection: AsyncConnection) -> None:
    """Makes every link invalid that nobody has followed yet."""
    await connection.execute(delete(operator_invite).where(operator_invite.c.used_at.is_(None)))


async def is_invite_open(connection: AsyncConnection, *, token_hash: bytes, now: datetime) -> bool:
    """Whether `use_invite` would succeed now."""
    statement = select(operator_invite.c.token_hash).where(
        operator_invite.c.token_hash == token_hash,
        operator_invite.c.used_at.is_(None),
        operator_invite.c.expires_at > now,
    )
    return (await connection.execute(statement)).one_or_none() is not None


async def use_invite(connection: AsyncConnection, *, token_hash: bytes, now: datetime) -> bool:
    """Marks the invite as used; False when it is unknown, used or expired. Two at once: one wins."""
    statement = (
        update(operator_invite)
        .where(
            operator_invite.c.token_hash == token_hash,
            operator_invite.c.used_at.is_(None),
            operator_invite.c.expires_at > now,
        )
        .values(used_at=now)
        .returning(operator_invite.c.token_hash)
    )
    return (await connection.execute(statement)).one_or_none() is not None


async def insert_session(
    connection: AsyncConnection,
    *,
    token_hash: bytes,
    operator_id: str,
    csrf_token: str,
    created_at: datetime,
    expires_at: datetime,
) -> None:
    """Stores a new session, seen when it was made."""
    await connection.execute(
        insert(operator_session).values(
            token_hash=token_hash,
            operator_id=operator_id,
            csrf_token=csrf_token,
            created_at=created_at,
            last_seen_at=created_at,
            expires_at=expires_at,
        )
    )


async def find_session(connection: AsyncConnection, token_hash: bytes) -> SessionRow | None:
    """A session with its operator, live or not."""
    statement = (
        select(
            operator_session.c.operator_id,
            operator.c.name,
            operator_session.c.csrf_token,
            operator_session.c.last_seen_at,
            operator_session.c.expires_at,
        )
        .join(operator, operator.c.id == operator_session.c.operator_id)
        .where(operator_session.c.token_hash == token_hash)
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    return SessionRow(
        operator_id=row.operator_id,
        operator_name=row.name,
        csrf_token=row.csrf_token,
        last_seen_at=row.last_seen_at,
        expires_at=row.expires_at,
    )


async def touch_session(connection: AsyncConnection, *, token_hash: bytes, last_seen_at: datetime) -> None:
    """Stores the session's newest visit."""
    await connection.execute(
        update(operator_session)
        .where(operator_session.c.token_hash == token_hash)
        .values(last_seen_at=last_seen_at)
    )


async def delete_session(connection: AsyncConnection, token_hash: bytes) -> None:
    """Ends a session; an unknown one is ended already."""
    await connection.execute(delete(operator_session).where(operator_session.c.token_hash == token_hash))


async def delete_sessions_past(
    connection: AsyncConnection, *, expired_by: datetime, unseen_since: datetime
) -> None:
    """Clears away sessions that nobody can use any more."""
    await connection.execute(
        delete(operator_session).where(
            (operator_session.c.expires_at <= expired_by) | (operator_session.c.last_seen_at <= unseen_since)
        )
    )
