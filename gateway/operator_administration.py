"""What operators may do to operator keys: each change and its audit row in one transaction.

Raises AdministrationError with a line for the operator, or StoreUnavailable.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy.exc import IntegrityError

from gateway.audit import queries as audit
from gateway.db import Database
from gateway.keys.bearer import OPERATOR_ENVIRONMENT
from gateway.keys.expiry import check_expiry
from gateway.keys.secret import digest, make_key, redact
from gateway.operators import key_queries as queries
from gateway.operators.operator_key import IssuedOperatorKey, OperatorKey
from gateway.operators.scopes import OperatorScope
from gateway.tenants.errors import AlreadyExists, BadValue, NoSuchThing
from gateway.tenants.names import checked_name


async def issue_operator_key(
    database: Database,
    pepper: bytes,
    actor: str,
    name: str,
    *,
    scopes: Collection[OperatorScope],
    expires_at: datetime | None = None,
) -> IssuedOperatorKey:
    """A new key, whose name no other key ever has: the audit trail knows keys by name.

    The secret in the answer is nowhere else, and never again.
    """
    name = checked_name(name)
    if not scopes:
        raise BadValue("An operator key needs a scope.")
    check_expiry(expires_at)
    made = make_key(OPERATOR_ENVIRONMENT)
    try:
        async with database.system_transaction() as connection:
            key = await queries.add(
                connection,
                key=made.id,
                name=name,
                scopes=scopes,
                digest=digest(made.value, pepper=pepper),
                redacted_value=redact(made.value),
                expires_at=expires_at,
            )
            await audit.record(
                connection, actor=actor, action="operator_key.issue", subject=key.id, after=_facts(key)
            )
    except IntegrityError as error:
        raise AlreadyExists(f"An operator key called {name!r} exists already, or once did.") from error
    return IssuedOperatorKey(secret=made.value, key=key)


async def list_operator_keys(database: Database) -> Sequence[OperatorKey]:
    """Every key, by name; revoked ones, too."""
    async with database.system_transaction() as connection:
        return await queries.all_by_name(connection)


async def revoke_operator_key(database: Database, actor: str, name_or_id: str) -> OperatorKey:
    """Ends a key; refused everywhere within two seconds."""
    async with database.system_transaction() as connection:
        old = await queries.find(connection, name_or_id, for_update=True)
        if old is None:
            raise NoSuchThing(f"There is no operator key {name_or_id!r}.")
        if old.revoked_at is not None:
            raise BadValue(f"The operator key {old.name!r} is revoked already.")
        revoked = await queries.revoke(connection, old.id)
        await audit.record(
            connection, actor=actor, action="operator_key.revoke", subject=old.id, before=_facts(old)
        )
    return revoked


def _facts(key: OperatorKey) -> audit.Facts:
    """What the audit trail says of a key: nothing that lets anybody in."""
    return {
        "id": key.id,
        "name": key.name,
        "redacted_value": key.redacted_value,
        "scopes": " ".join(key.scopes),
        "expires_at": None if key.expires_at is None else key.expires_at.isoformat(),
    }
