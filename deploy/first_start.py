"""What an empty store needs before anybody can use it: a tenant with a key, and a way in for an operator."""

from contextlib import suppress
from dataclasses import dataclass

from deploy.data_directory import DataDirectory, write_private
from gateway import administration, key_administration
from gateway.db import Database
from gateway.operators.service import create_invite, has_operator
from gateway.settings import GatewaySettings
from gateway.tenants.errors import AlreadyExists

FIRST_TENANT = "default"
ACTOR = "sluice serve"


@dataclass(frozen=True, kw_only=True)
class FirstStart:
    """What this start made: a key's secret, an invite's token, or neither."""

    key_secret: str | None
    invite_token: str | None


async def prepare(settings: GatewaySettings, directory: DataDirectory) -> FirstStart:
    """Makes a tenant and a key in a store without keys, and an invite while no operator has signed in."""
    database = Database.connect(settings.database_url, application_name="sluice serve", pool_size=1)
    try:
        return FirstStart(
            key_secret=await _first_key(database, settings, directory),
            invite_token=None if await has_operator(database) else await create_invite(database),
        )
    finally:
        await database.close()


async def _first_key(database: Database, settings: GatewaySettings, directory: DataDirectory) -> str | None:
    if await key_administration.list_keys(database):
        return None
    with suppress(AlreadyExists):  # made by a start that was killed before it made the key
        await administration.create_tenant(database, ACTOR, FIRST_TENANT, limits=None)
    issued = await key_administration.issue_key(
        database, bytes.fromhex(settings.secrets.key_pepper), ACTOR, FIRST_TENANT, name="first key"
    )
    write_private(directory.first_key, issued.secret + "\n")
    return issued.secret
