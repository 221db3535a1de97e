"""Alembic's entry: runs the versions on the connection it is handed, or on SLUICE_DATABASE_URL's."""

import os

from alembic import context
from sqlalchemy import Connection, NullPool, create_engine, text

from gateway.db import driver_url
from migrations.schema import metadata

REACH_ALL_ROWS = "SET LOCAL sluice.reach = 'all'"  # else forced row security hides all data from a migration


def run(connection: Connection) -> None:
    """All of the pending versions in one transaction, so a failure leaves nothing half done."""
    context.configure(connection=connection, target_metadata=metadata)
    with context.begin_transaction():
        connection.execute(text(REACH_ALL_ROWS))
        context.run_migrations()


def run_from_environment() -> None:
    owner = create_engine(driver_url(os.environ["SLUICE_DATABASE_URL"]), poolclass=NullPool)
    with owner.connect() as connection:
        run(connection)


given = context.config.attributes.get("connection")
if given is None:
    run_from_environment()
else:
    run(given)
