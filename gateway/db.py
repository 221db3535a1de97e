"""The one door to Postgres: connections, transactions, and what an unreachable store looks like.

It knows no table and no query; those live in the slices (`tables.py`, `queries.py`).
"""

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

from sqlalchemy import URL, AdaptedConnection, MetaData, event, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from gateway.errors import StoreUnavailable

SERVING_ROLE: Final = "sluice_app"
CONNECT_TIMEOUT_SECONDS: Final = 3
POOL_TIMEOUT_SECONDS: Final = 5.0
STATEMENT_TIMEOUT_MS: Final = 5_000
TRANSACTION_TIMEOUT_SECONDS: Final = 6.0  # a server that hangs without closing answers nothing at all

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

    def __init__(self, connections: AsyncEngine) -> None:
        self._connections = connections

    @classmethod
    def connect(cls, url: str, *, application_name: str, pool_size: int = 5) -> Self:
        """`url` is `postgresql[+psycopg]://`; `application_name` shows in pg_stat_activity."""
        connections = create_async_engine(
            driver_url(url),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            hide_parameters=True,  # errors and logs never show a value
            connect_args={
                "application_name": application_name,
                "connect_timeout": CONNECT_TIMEOUT_SECONDS,
                "tcp_user_timeout": STATEMENT_TIMEOUT_MS,
                # As start-up options these cost no round trip and survive RESET.
                "options": f"-c role={SERVING_ROLE} -c statement_timeout={STATEMENT_TIMEOUT_MS}",
            },
        )
        event.listen(connections.sync_engine, "checkout", _refuse_if_cut)
        return cls(connections)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One short READ COMMITTED transaction: commits at exit, rolls back on an error.

        Raises StoreUnavailable when the store cannot be reached, is too slow, or went away meanwhile;
        whether a commit that was under way took effect is then unknown.
        """
        try:
            async with asyncio.timeout(TRANSACTION_TIMEOUT_SECONDS) as deadline:
                async with self._connections.begin() as connection:
                    yield connection
        except (OperationalError, InterfaceError, PoolTimeout) as error:
            raise StoreUnavailable("The database cannot be reached right now.") from error
        except DBAPIError as error:
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


def driver_url(url: str) -> URL:
    """The same address, spoken to through psycopg 3."""
    return make_url(url).set(drivername="postgresql+psycopg")
