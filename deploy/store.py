"""Which Postgres a command works on: the one that is configured, or the data directory's own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy import embedded_postgres
from deploy.failure import Failure
from gateway.settings import check_database_url
from migrations import run as migrations

DATABASE_URL_VARIABLE = "SLUICE_DATABASE_URL"


def configured_url(database_url: str | None) -> str | None:
    """The external database that an option or the environment names; None means the embedded one.

    Raises Failure for what is no address of a Postgres.
    """
    url = database_url or os.environ.get(DATABASE_URL_VARIABLE)
    if not url:
        return None
    try:
        return check_database_url(url)
    except ValueError as error:
        raise Failure(f"--database-url or {DATABASE_URL_VARIABLE} is wrong: {error}") from error


@contextmanager
def store_url(*, data_dir: Path, database_url: str | None) -> Iterator[str]:
    """The URL of the store, up and at the newest schema, until the block ends.

    An embedded Postgres that runs is used and left alone; one that does not is started for the moment.
    An external database is never migrated here: `sluice migrate` does that when its operator says so, and
    until then this raises Failure.
    """
    external = configured_url(database_url)
    if external is not None:
        if not migrations.is_current(external):
            raise Failure("the database has not the schema that this version needs; run: sluice migrate")
        yield external
        return
    with embedded_postgres.running(data_dir) as url:
        if not migrations.is_current(url):
            migrations.upgrade(url)
        yield url
