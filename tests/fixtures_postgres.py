"""One Postgres per test session, one migrated template in it, one clone of that per test."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from deploy.embedded_postgres import start
from gateway.db import Database
from migrations.run import upgrade

# A clone is 450 small files: on a disk that took 0.2 to 0.7 s of the processor, in memory it takes 0.03 s.
MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES: Final = 2 * 1024**3  # of which a session uses a tenth; a container may have 64 MB in all
_clone_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The server's own database, as superuser. Its socket path must be short, so it is not under tmp_path."""
    with tempfile.TemporaryDirectory(prefix="sluice-test-", dir=_quick_directory()) as directory:
        server = start(Path(directory))
        try:
            _execute(server.url, sql.SQL("ALTER SYSTEM SET fsync = off"))
            _execute(server.url, sql.SQL("SELECT pg_reload_conf()"))
            yield server.url
        finally:
            server.stop()


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> str:
    """Name of a database with the newest schema and no rows."""
    _execute(postgres_url, sql.SQL("CREATE DATABASE template_migrated"))
    upgrade(_url_of(postgres_url, "template_migrated"))
    return "template_migrated"


@pytest.fixture
def database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    with _new_database(postgres_url, template=migrated_template) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """A database of the test's own, without any table."""
    with _new_database(postgres_url, template="template1") as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """`database_url`, connected as serving processes are."""
    database = Database.connect(database_url, application_name="test", pool_size=10)
    try:
        yield database
    finally:
        await database.close()


class StoreSwitch:
    """Takes one database away from everybody, and gives it back."""

    def __init__(self, postgres_url: str, database: str) -> None:
        self._postgres_url = postgres_url
        self._database = sql.Identifier(database)
        self._name = sql.Literal(database)

    def off(self) -> None:
        """Cuts every connection and lets none in."""
        _execute(
            self._postgres_url, sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(self._database)
        )
        cut = sql.SQL("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = {}")
        _execute(self._postgres_url, cut.format(self._name))

    def on(self) -> None:
        """Lets connections in again."""
        _execute(
            self._postgres_url, sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(self._database)
        )


@pytest.fixture
def store_switch(postgres_url: str, database_url: str) -> StoreSwitch:
    """For `database_url`."""
    database = make_url(database_url).database
    assert database is not None
    return StoreSwitch(postgres_url, database)


def _quick_directory() -> Path | None:
    """Files in memory, where there is room for them; else the system's place for what is temporary."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    return MEMORY if has_room else None


@contextmanager
def _new_database(postgres_url: str, *, template: str) -> Iterator[str]:
    name = f"test_{next(_clone_numbers)}"
    # Whole files: block by block, through the log, it takes twice as long.
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
    _execute(postgres_url, create.format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield _url_of(postgres_url, name)
    finally:
        _execute(postgres_url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _url_of(postgres_url: str, database: str) -> str:
    return make_url(postgres_url).set(database=database).render_as_string(hide_password=False)


def _execute(url: str, statement: sql.SQL | sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
