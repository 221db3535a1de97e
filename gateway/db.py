"""The doors to Postgres: connections, transactions, and what an unreachable store looks like.

Every transaction says whose rows it may see, and the store holds it to that (row-level security):
`tenant_transaction` for work on behalf of known tenants, `system_transaction` for what spans all of them.
Text that Postgres has no way to hold is found out here, whoever brings it and whatever for: UnstorableText.
It knows no table and no query; those live in the slices (`tables.py`, `queries.py`).
"""

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Self

from psycopg.errors import DataError, UntranslatableCharacter
from psycopg.sql import SQL, Literal
from sqlalchemy import URL, AdaptedConnection, MetaData, event, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from gateway.errors import StoreUnavailable, UnstorableText

SERVING_ROLE: Final = "sluice_app"
CONNECT_TIMEOUT_SECONDS: Final = 3
POOL_TIMEOUT_SECONDS: Final = 5.0
STATEMENT_TIMEOUT_MS: Final = 5_000
SILENCE_SECONDS: Final = (
    1.0  # past a statement's time: a server that hangs without closing says nothing at all
)

# One message to the server, so that saying whose rows are meant costs no round trip.
_BEGIN_SYSTEM: Final = "BEGIN; SET LOCAL sluice.reach = 'all'"
_BEGIN_TENANTS: Final = SQL("BEGIN; SET LOCAL sluice.tenants = {}")

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Database:
    """A pool of connections that serve as the role `sluice_app`; opens none before the first transaction."""

    def __init__(self, connections: AsyncEngine, *, transaction_timeout_seconds: float) -> None:
        self._connections = connections
        self._transaction_timeout_seconds = transaction_timeout_seconds

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        application_name: str,
        pool_size: int = 5,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    ) -> Self:
        """`url` is `postgresql[+psycopg]://`; `application_name` shows in pg_stat_activity."""
        connections = create_async_engine(
            driver_url(url),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            hide_parameters=True,  # errors and logs never show a value
            isolation_level="AUTOCOMMIT",  # the driver begins nothing by itself: a door does
            connect_args={
                "application_name": application_name,
                "connect_timeout": CONNECT_TIMEOUT_SECONDS,
                "tcp_user_timeout": statement_timeout_ms,
                # As start-up options these cost no round trip and survive RESET.
                "options": f"-c role={SERVING_ROLE} -c statement_timeout={statement_timeout_ms}",
            },
        )
        event.listen(connections.sync_engine, "checkout", _refuse_if_cut)
        return cls(connections, transaction_timeout_seconds=statement_timeout_ms / 1000 + SILENCE_SECONDS)

    def tenant_transaction(self, *tenant_ids: str) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction that sees and changes rows of these tenants only, whatever its statements forget.

        Commits, rolls back and raises as `system_transaction` does.
        """
        return self._transaction(_BEGIN_TENANTS.format(Literal(list(tenant_ids))).as_string())

    def system_transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction that spans tenants: finding whose a key is, ticks, sweeps, administration.

        One short READ COMMITTED transaction: commits at exit, rolls back on an error. Raises StoreUnavailable
        when the store cannot be reached, is too slow, or went away meanwhile; whether a commit that was under
        way took effect is then unknown. Raises UnstorableText for a value that no row can have.
        """
        return self._transaction(_BEGIN_SYSTEM)

    @asynccontextmanager
    async def _transaction(self, begin: str) -> AsyncIterator[AsyncConnection]:
        try:
            async with asyncio.timeout(self._transaction_timeout_seconds) as deadline:
                async with self._connections.begin() as connection:
                    await connection.exec_driver_sql(begin)
                    yield connection
        except (OperationalError, InterfaceError, PoolTimeout) as error:
            raise StoreUnavailable("The database cannot be reached right now.") from error
        except UnicodeEncodeError as error:  # what a terminal made of bytes that are no UTF-8
            raise UnstorableText from error
        except DBAPIError as error:
            if _is_about_text(error):
                raise UnstorableText from error
            if not error.connection_invalidated:
                raise
            raise StoreUnavailable("The connection to the database was lost.") from error
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise StoreUnavailable("The database did not answer in time.") from error

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncConnection]:
        """One connection that is kept, without a transaction: for locks that last as long as it does."""
        try:
            async with self._connections.connect() as connection:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")
        except (DBAPIError, PoolTimeout) as error:
            raise StoreUnavailable("The connection to the database was lost.") from error

    async def close(self) -> None:
        """Closes every pooled connection."""
        await self._connections.dispose()


def _refuse_if_cut(
    connection: AdaptedConnection, _record: ConnectionPoolEntry, _proxy: PoolProxiedConnection
) -> None:
    """An idle connection has nothing to read but its end: after a restart of the store, open new ones.

    A ping would tell the same for a round trip at every transaction.
    """
    idle = select.poll()
    idle.register(connection.driver_connection.fileno(), select.POLLIN)
    if idle.poll(0):
        raise InvalidatePoolError


def _is_about_text(error: DBAPIError) -> bool:
    """The driver sends no NUL in a text (an error of its own has no state), the store takes none in JSON."""
    cause = error.orig
    is_the_drivers = isinstance(cause, DataError) and cause.sqlstate is None
    return is_the_drivers or isinstance(cause, UntranslatableCharacter)


def driver_url(url: str) -> URL:
    """The same address, spoken to through psycopg 3."""
    return make_url(url).set(drivername="postgresql+psycopg")
