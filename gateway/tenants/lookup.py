"""Finds the tenant that an operator names, or says in a line that there is none."""

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.tenants import queries
from gateway.tenants.errors import NoSuchThing
from gateway.tenants.tenant import Tenant


async def tenant_called(connection: AsyncConnection, name_or_id: str, *, for_update: bool = False) -> Tenant:
    """The tenant, by name or id. Raises NoSuchThing."""
    tenant = await queries.find(connection, storable(name_or_id), for_update=for_update)
    if tenant is None:
        raise NoSuchThing(f"There is no tenant {name_or_id!r}.")
    return tenant


def storable(text: str) -> str:
    """`text`, if something can be called so: Postgres stores no NUL. Raises NoSuchThing."""
    if "\0" in text:
        raise NoSuchThing(f"There is nothing called {text!r}.")
    return text
