"""What an operator can do about signing in: accept an invite, sign in, stay signed in, sign out.

Each verb is one short transaction. Passwords and tokens come in as a person gives them and are stored as
hashes only. Knows nothing of cookies, forms or pages.
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import Database
from gateway.operators import queries
from gateway.operators.credentials import digest, new_secret
from gateway.operators.passwords import Passwords
from gateway.operators.policy import (
    INVITE_LIFETIME,
    SESSION_IDLE_LIFETIME,
    SESSION_LIFETIME,
    NameRefused,
    OperatorError,
    check_name,
    check_password,
    is_last_seen_stale,
    is_session_live,
)


class InviteRefused(OperatorError):
    """The link is unknown, was used before, or is over 24 hours old."""


class SignInRefused(OperatorError):
    """Name and password do not belong together. Never says which of them is wrong."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A person who is signed in. `csrf_token` goes into every form that this person gets."""

    operator_id: str
    operator_name: str
    csrf_token: str


@dataclass(frozen=True, kw_only=True)
class OpenedSession:
    """A new session's secret, for the browser's cookie: the store keeps only its hash."""

    token: str
    expires_at: datetime


async def has_operator(database: Database) -> bool:
    """Whether anybody can sign in yet."""
    async with database.system_transaction() as connection:
        return await queries.any_operator(connection)


async def create_invite(database: Database) -> str:
    """A token for one first sign-in within 24 hours. It makes earlier, unused ones invalid."""
    token, now = new_secret(), datetime.now(UTC)
    async with database.system_transaction() as connection:
        await queries.delete_unused_invites(connection)
        await queries.insert_invite(
            connection, token_hash=digest(token), created_at=now, expires_at=now + INVITE_LIFETIME
        )
    return token


async def is_invite_open(database: Database, token: str) -> bool:
    """Whether the token could still be accepted."""
    async with database.system_transaction() as connection:
        return await queries.is_invite_open(connection, token_hash=digest(token), now=datetime.now(UTC))


async def accept_invite(
    database: Database, passwords: Passwords, *, token: str, name: str, password: str
) -> OpenedSession:
    """Makes an operator and signs them in. Raises InviteRefused, NameRefused or PasswordRefused.

    Whatever is raised, the invite stays as it was.
    """
    stored_name = check_name(name)
    check_password(password)
    if not await is_invite_open(database, token):  # hashing is dear: not for anybody without a link
        raise _invite_refused()
    password_hash = await passwords.hash(password)
    now, operator_id = datetime.now(UTC), f"op_{secrets.token_hex(12)}"
    try:
        async with database.system_transaction() as connection:
            if not await queries.use_invite(connection, token_hash=digest(token), now=now):
                raise _invite_refused()
            await queries.insert_operator(
                connection, id=operator_id, name=stored_name, password_hash=password_hash, created_at=now
            )
            return await _open_session(connection, operator_id=operator_id, now=now)
    except IntegrityError as error:
        raise NameRefused(f"There is already an operator named {stored_name}.") from error


async def sign_in(
    database: Database, passwords: Passwords, *, name: str, password: str, replaces: str | None
) -> OpenedSession:
    """Opens a session, always a new one; ends the one of the token `replaces`. Raises SignInRefused."""
    found = await _find_operator(database, name)
    fits = await passwords.verify(None if found is None else found.password_hash, password)
    if found is None or not fits:
        raise SignInRefused("Name and password do not match.")
    async with database.system_transaction() as connection:
        if replaces is not None:
            await queries.delete_session(connection, digest(replaces))
        return await _open_session(connection, operator_id=found.id, now=datetime.now(UTC))


async def find_session(database: Database, token: str, *, is_visit: bool) -> Session | None:
    """The live session of a cookie, or None. A visit postpones its idle end; a background look does not."""
    now = datetime.now(UTC)
    async with database.system_transaction() as connection:
        found = await queries.find_session(connection, digest(token))
        if found is None or not is_session_live(
            now=now, last_seen_at=found.last_seen_at, expires_at=found.expires_at
        ):
            return None
        if is_visit and is_last_seen_stale(now=now, last_seen_at=found.last_seen_at):
            await queries.touch_session(connection, token_hash=digest(token), last_seen_at=now)
    return Session(
        operator_id=found.operator_id, operator_name=found.operator_name, csrf_token=found.csrf_token
    )


async def sign_out(database: Database, token: str) -> None:
    """Ends the session; an unknown token is ended already."""
    async with database.system_transaction() as connection:
        await queries.delete_session(connection, digest(token))


async def _find_operator(database: Database, name: str) -> queries.OperatorRow | None:
    try:
        stored_name = check_name(name)
    except NameRefused:  # nobody has it: as unknown as any other
        return None
    async with database.system_transaction() as connection:
        return await queries.find_operator(connection, stored_name)


async def _open_session(connection: AsyncConnection, *, operator_id: str, now: datetime) -> OpenedSession:
    opened = OpenedSession(token=new_secret(), expires_at=now + SESSION_LIFETIME)
    await queries.delete_sessions_past(connection, expired_by=now, unseen_since=now - SESSION_IDLE_LIFETIME)
    await queries.insert_session(
        connection,
        token_hash=digest(opened.token),
        operator_id=operator_id,
        csrf_token=new_secret(),
        created_at=now,
        expires_at=opened.expires_at,
    )
    return opened


def _invite_refused() -> InviteRefused:
    return InviteRefused("This link is not valid any more. Restart the server for a new one, or sign in.")
