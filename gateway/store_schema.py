"""Whether the store has the schema that this code was written for. Knows none of its migrations."""

import logging
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.db import SERVING_ROLE, Database
from gateway.errors import StoreUnavailable

SCHEMA_VERSION: Final = "20261209_batches"  # a test holds it to the newest migration
UNDEFINED_TABLE: Final = "42P01"
MIGRATE: Final = "run: sluice migrate"

logger = logging.getLogger(__name__)


async def check_schema(database: Database) -> None:
    """Raises StoreUnavailable, in words that say what to do, when the store's schema is too old.

    A newer one is served: while versions are exchanged one after the other, changes only add to it.
    """
    found = await _version(database)
    if found is None:
        raise StoreUnavailable(f"The database has no schema of Sluice yet; {MIGRATE}")
    if found < SCHEMA_VERSION:  # versions begin with their date
        raise StoreUnavailable(
            f"The database has an older schema ({found}) than this version needs; {MIGRATE}"
        )
    if found > SCHEMA_VERSION:
        logger.warning(
            "the database has a newer schema (%s) than this version of Sluice knows (%s)",
            found,
            SCHEMA_VERSION,
        )


async def _version(database: Database) -> str | None:
    """None before the first migration."""
    try:
        async with database.system_transaction() as connection:
            version = await connection.scalar(text("SELECT max(version_num) FROM alembic_version"))
    except StoreUnavailable as error:
        if _is_without_role(error):
            return None
        raise
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == UNDEFINED_TABLE:
            return None
        raise
    return None if version is None else str(version)


def _is_without_role(error: StoreUnavailable) -> bool:
    """The first migration makes the role that serves; without it nobody gets a connection."""
    return f'role "{SERVING_ROLE}" does not exist' in str(error.__cause__)
