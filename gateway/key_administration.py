"""What operators may do to API keys: each change and its audit row in one transaction.

Used by the command line and the admin pages. It knows no HTTP and no terminal; who the actor is, its caller
says. Raises AdministrationError with a line for the operator, or StoreUnavailable.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.audit import queries as audit
from gateway.db import Database
from gateway.keys import queries as keys
from gateway.keys.expiry import check_expiry
from gateway.keys.key import ApiKey, IssuedKey, KeyState, KeyTerms
from gateway.keys.scope import ALL_SCOPES, Scope
from gateway.keys.secret import digest, make_key, redact, renew_key
from gateway.tenants.errors import BadValue, NoSuchThing
from gateway.tenants.ids import KeyId
from gateway.tenants.lookup import project_called, tenant_called
from gateway.tenants.names import checked_name
from gateway.tenants.weight import check_weight

DEFAULT_OVERLAP: Final = timedelta(hours=24)
MAX_OVERLAP: Final = timedelta(days=30)


async def issue_key(
    database: Database,
    pepper: bytes,
    actor: str,
    tenant_name_or_id: str,
    *,
    name: str,
    project: str | None = None,
    weight: float = 1.0,
    scopes: Collection[Scope] = ALL_SCOPES,
    models: Collection[str] | None = None,
    expires_at: datetime | None = None,
) -> IssuedKey:
    """A new key of a tenant's project, the first one without `project`; for `models` None: for all of them.

    The secret in the answer is nowhere else, and never again.
    """
    terms = _checked(
        KeyTerms(
            name=name,
            weight=weight,
            scopes=tuple(scopes),
            models=None if models is None else tuple(models),
            expires_at=expires_at,
        )
    )
    made = make_key()
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, tenant_name_or_id)
        key = await keys.add(
            connection,
            key=made.id,
            project=await project_called(connection, tenant, project),
            digest=digest(made.value, pepper=pepper),
            redacted_value=redact(made.value),
            **terms,
        )
        await audit.record(connection, actor=actor, action="key.issue", subject=key.id, after=_facts(key))
    return IssuedKey(secret=made.value, key=key)


async def list_keys(database: Database, tenant_name_or_id: str | None = None) -> Sequence[ApiKey]:
    """A tenant's keys, or everybody's: newest first."""
    async with database.system_transaction() as connection:
        if tenant_name_or_id is None:
            return await keys.all_of(connection, None)
        tenant = await tenant_called(connection, tenant_name_or_id)
        return await keys.all_of(connection, tenant.id)


async def page_of_keys(
    database: Database,
    tenant_name_or_id: str | None = None,
    *,
    limit: int,
    after: str | None = None,
) -> Sequence[ApiKey]:
    """At most `limit` keys of a tenant, or of everybody, newest first; those behind the key `after`."""
    async with database.system_transaction() as connection:
        last = None if after is None else (await _key_called(connection, KeyId(after))).id
        tenant = None if tenant_name_or_id is None else await tenant_called(connection, tenant_name_or_id)
        return await keys.page(connection, None if tenant is None else tenant.id, limit=limit, after=last)


async def get_key(database: Database, key: KeyId) -> ApiKey:
    """One key. Raises NoSuchThing."""
    async with database.system_transaction() as connection:
        return await _key_called(connection, key)


async def change_key(database: Database, actor: str, key: KeyId, terms: KeyTerms) -> ApiKey:
    """Gives a key other terms, binding everywhere within two seconds; what runs already finishes.

    Terms that it has already leave no trail.
    """
    terms = _checked(terms)
    async with database.system_transaction() as connection:
        old = await _live_key(connection, key)
        if replace(old, **terms) == old:
            return old
        new = await keys.change(connection, old.id, terms)
        await audit.record(
            connection,
            actor=actor,
            action="key.change",
            subject=old.id,
            before=_facts(old),
            after=_facts(new),
        )
    return new


async def rotate_key(
    database: Database, pepper: bytes, actor: str, key: KeyId, *, overlap: timedelta = DEFAULT_OVERLAP
) -> IssuedKey:
    """A new secret of the same key; the one before it lets in until `overlap` has passed.

    Of a rotation that is still under way, the older secret ends now: everywhere within two seconds.
    """
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise BadValue(f"An old secret can live on for 0 to {MAX_OVERLAP.days} days.")
    async with database.system_transaction() as connection:
        old = await _live_key(connection, key)
        if old.state(datetime.now(UTC)) is KeyState.EXPIRED:
            raise BadValue(f"The key {key} has expired; issue another one.")
        made = renew_key(old.id)
        new = await keys.renew(
            connection,
            old.id,
            digest=digest(made.value, pepper=pepper),
            redacted_value=redact(made.value),
            overlap=overlap,
        )
        await audit.record(
            connection,
            actor=actor,
            action="key.rotate",
            subject=old.id,
            before=_facts(old),
            after=_facts(new),
        )
    return IssuedKey(secret=made.value, key=new)


async def revoke_key(database: Database, actor: str, key: KeyId) -> ApiKey:
    """Ends a key with all its secrets; refused everywhere within two seconds."""
    async with database.system_transaction() as connection:
        old = await _live_key(connection, key)
        revoked = await keys.revoke(connection, old.id)
        await audit.record(connection, actor=actor, action="key.revoke", subject=old.id, before=_facts(old))
    return revoked


def _checked(terms: KeyTerms) -> KeyTerms:
    """The terms as they are stored. Raises BadValue."""
    checked = KeyTerms(**terms)
    if "name" in terms:
        checked["name"] = checked_name(terms["name"])
    if "weight" in terms:
        check_weight(terms["weight"])
    if "scopes" in terms:
        checked["scopes"] = _checked_scopes(terms["scopes"])
    if "models" in terms:
        checked["models"] = _checked_models(terms["models"])
    check_expiry(terms.get("expires_at"))
    return checked


def _checked_scopes(scopes: Collection[Scope]) -> tuple[Scope, ...]:
    if not scopes:
        raise BadValue("A key needs a scope.")
    return tuple(scope for scope in Scope if scope in scopes)


def _checked_models(models: Collection[str] | None) -> tuple[str, ...] | None:
    if models is None:
        return None
    if not models:
        raise BadValue("A list of allowed models must name one; without a list all are allowed.")
    return tuple(sorted({checked_name(model) for model in models}))


async def _key_called(connection: AsyncConnection, key: KeyId, *, for_update: bool = False) -> ApiKey:
    found = await keys.find(connection, key, for_update=for_update)
    if found is None:
        raise NoSuchThing(f"There is no key {key!r}.")
    return found


async def _live_key(connection: AsyncConnection, key: KeyId) -> ApiKey:
    found = await _key_called(connection, key, for_update=True)
    if found.revoked_at is not None:
        raise BadValue(f"The key {key} is revoked already.")
    return found


def _facts(key: ApiKey) -> audit.Facts:
    """What the audit trail says of a key: nothing that lets anybody in."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "project": key.project,
        "name": key.name,
        "weight": key.weight,
        "redacted_value": key.redacted_value,
        "scopes": " ".join(key.scopes),
        "models": None if key.models is None else " ".join(key.models),
        "expires_at": _moment(key.expires_at),
        "previous_redacted_value": key.previous_redacted_value,
        "previous_expires_at": _moment(key.previous_expires_at),
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
