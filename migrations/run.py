"""Brings a database to the newest schema, once, however many processes ask for it at the same time.

Runs as the database's owner; serving uses the role that the first version makes. Alembic is imported where it
is used: every command starts by importing this module, and few migrate.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, NullPool, create_engine, text

from gateway.db import driver_url

if TYPE_CHECKING:
    from alembic.config import Config

LOCK_ID: Final = 0x51_01CE  # of pg_advisory_lock; any constant does, as long as it stays


def upgrade(url: str, revision: str = "head") -> None:
    """Waits for its turn, then applies what is still missing. Raises SQLAlchemy's errors."""
    from alembic import command

    with _locked_connection(url) as connection:
        command.upgrade(_config(connection), revision)
        connection.commit()


def downgrade(url: str, revision: str) -> None:
    """Takes versions back down to `revision` (`base`: all of them)."""
    from alembic import command

    with _locked_connection(url) as connection:
        command.downgrade(_config(connection), revision)
        connection.commit()


def is_current(url: str) -> bool:
    """Whether the database has exactly the schema that this code expects."""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    expected = ScriptDirectory(str(Path(__file__).parent)).get_heads()
    with _connection(url) as connection:
        return set(MigrationContext.configure(connection).get_current_heads()) == set(expected)


@contextmanager
def _connection(url: str) -> Iterator[Connection]:
    owner = create_engine(driver_url(url), poolclass=NullPool, connect_args={"connect_timeout": 5})
    with owner.connect() as connection:
        yield connection


@contextmanager
def _locked_connection(url: str) -> Iterator[Connection]:
    """The lock belongs to the session: it ends with the connection, even when the process is killed."""
    with _connection(url) as connection:
        connection.execute(text("SELECT pg_advisory_lock(:id)"), {"id": LOCK_ID})
        connection.commit()
        yield connection


def _config(connection: Connection) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
