"""The second wall: what a transaction may see is held by the store, whatever its statements forget to say."""

from contextlib import suppress

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import Database
from gateway.metering import Metering
from gateway.usage.outcome import Outcome
from migrations.run import downgrade, upgrade
from tests.builders.store import Customer, make_customer, reserve, used
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres

# Tables whose rows are a tenant's, with the column that says whose. A partition that serving has no right to
# is behind its parent's wall.
TENANTS_TABLES = """
    SELECT c.oid::regclass::text, a.attname FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
    WHERE c.relkind IN ('r', 'p')
      AND (a.attname = 'tenant_id' OR (c.relname = 'tenant' AND a.attname = 'id'))
      AND (NOT c.relispartition OR has_table_privilege('sluice_app', c.oid, 'SELECT, INSERT, UPDATE, DELETE'))
    ORDER BY 1
"""

DELETABLE = f"""
    SELECT name FROM ({TENANTS_TABLES}) AS tenants_table (name)
    WHERE has_table_privilege('sluice_app', name, 'DELETE')
"""


def tenants_tables(url: str) -> list[tuple[str, str]]:
    return [(str(table), str(column)) for table, column in rows(url, TENANTS_TABLES)]


async def num_rows(connection: AsyncConnection, table: str) -> int:
    return int(await connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)


async def owners(connection: AsyncConnection, table: str, column: str) -> set[str]:
    return set((await connection.execute(text(f"SELECT {column} FROM {table}"))).scalars())


# What a gateway that lives has, of one that died just now.
LEFT_BEHIND = (
    """INSERT INTO quota_lease (bucket_id, epoch, tenant_id, granted, idle)
       SELECT id, 999, tenant_id, 1, 1 FROM quota_bucket""",
    "INSERT INTO replica_load (epoch, tenant_id, num_live) SELECT 999, id, 1 FROM tenant",
)
# A file and a batch of it, half done.
BATCHES = (
    """INSERT INTO file (id, tenant_id, project_id, purpose, filename, num_bytes, sha256, blob)
       SELECT 'file-' || tenant_id, tenant_id, id, 'batch', 'in.jsonl', 1, '', 'blob' FROM project""",
    """INSERT INTO batch (id, tenant_id, project_id, key_id, endpoint, input_file_id, input_blob,
                          completion_window, expires_at)
       SELECT 'batch_' || tenant_id, tenant_id, id, 'key', '/v1/completions', 'file', 'blob', '24h', now()
       FROM project""",
    """INSERT INTO batch_item
           (batch_id, line, tenant_id, custom_id, first_byte, num_bytes, prompt_tokens, prefix)
       SELECT id, 1, tenant_id, 'one', 0, 1, 1, 0 FROM batch""",
    """INSERT INTO batch_result (batch_id, line, tenant_id, is_error, body)
       SELECT id, 1, tenant_id, false, '{}' FROM batch""",
    "INSERT INTO batch_share (tenant_id, served) SELECT id, 1 FROM tenant",
)


@pytest.fixture
async def customers(database: Database, database_url: str) -> tuple[Customer, Customer]:
    """Two tenants that both have rows in every table: keys, projects, limits, credit, use."""
    metering = Metering(database, "gateway-1")
    await metering.start()
    ours = await make_customer(database, "ours", concurrent_requests=8, tokens_per_minute=1_000)
    theirs = await make_customer(database, "theirs", concurrent_requests=8, tokens_per_minute=1_000)
    for customer in (ours, theirs):
        metering.settle(await reserve(metering, customer.caller), used(10, 5), Outcome.FINISHED)
    await metering.stop()
    with psycopg.connect(database_url) as connection:
        for statement in LEFT_BEHIND + BATCHES:
            connection.execute(statement)
    return ours, theirs


def test_no_table_with_a_tenant_lacks_a_forced_policy(database_url: str) -> None:
    walled = "SELECT oid::regclass::text FROM pg_class WHERE relrowsecurity AND relforcerowsecurity"
    with_policy = "SELECT polrelid::regclass::text FROM pg_policy"
    names = {table for table, _ in tenants_tables(database_url)}
    assert {"api_key", "project", "tenant", "usage_event"} <= names
    assert names <= {str(name) for (name,) in rows(database_url, walled)}
    assert names <= {str(name) for (name,) in rows(database_url, with_policy)}


async def test_the_fixture_fills_every_table_for_both(
    database: Database, database_url: str, customers: tuple[Customer, Customer]
) -> None:
    both = {customer.tenant.id for customer in customers}
    async with database.system_transaction() as connection:
        for table, column in tenants_tables(database_url):
            assert await owners(connection, table, column) == both, table


async def test_without_a_door_nothing_is_visible(
    database_url: str, customers: tuple[Customer, Customer]
) -> None:
    with psycopg.connect(database_url, options="-c role=sluice_app") as connection:
        for table, _ in tenants_tables(database_url):
            query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
            assert connection.execute(query).fetchone() == (0,), table


async def test_a_query_that_forgets_its_where_shows_own_rows_only(
    database: Database, database_url: str, customers: tuple[Customer, Customer]
) -> None:
    ours, _ = customers
    async with database.tenant_transaction(ours.tenant.id) as connection:
        for table, column in tenants_tables(database_url):
            assert await owners(connection, table, column) == {ours.tenant.id}, table


async def test_a_door_for_two_tenants_shows_both_and_one_for_none_shows_nothing(
    database: Database, database_url: str, customers: tuple[Customer, Customer]
) -> None:
    both = [customer.tenant.id for customer in customers]
    async with database.tenant_transaction(*both) as connection:
        assert await owners(connection, "tenant", "id") == set(both)
    async with database.tenant_transaction() as connection:
        assert await num_rows(connection, "tenant") == 0


async def test_an_update_without_a_where_changes_own_rows_only(
    database: Database, database_url: str, customers: tuple[Customer, Customer]
) -> None:
    ours, theirs = customers
    before = _rows_of(database_url, theirs)
    for table, column in tenants_tables(database_url):
        assert await _run_as(database, ours, f"UPDATE {table} SET {column} = {column}") > 0, table
    assert _rows_of(database_url, theirs) == before


async def test_a_delete_without_a_where_deletes_own_rows_only(
    database: Database, database_url: str, customers: tuple[Customer, Customer]
) -> None:
    ours, theirs = customers
    before = _rows_of(database_url, theirs)
    tables = [str(table) for (table,) in rows(database_url, DELETABLE)]
    for table in tables * len(tables):  # in the end also those that the others refer to
        with suppress(IntegrityError):
            await _run_as(database, ours, f"DELETE FROM {table}")
    left = _rows_of(database_url, ours)
    assert {"api_key", "tenant"} <= set(tables)
    assert all(left[table] == [] for table in tables)
    assert _rows_of(database_url, theirs) == before


async def test_no_row_can_be_given_to_another_tenant(
    database: Database, database_url: str, customers: tuple[Customer, Customer]
) -> None:
    ours, theirs = customers
    for table, column in tenants_tables(database_url):
        with pytest.raises(ProgrammingError, match="row-level security"):
            await _run_as(database, ours, f"UPDATE {table} SET {column} = :id", id=theirs.tenant.id)


async def test_no_row_can_be_made_for_another_tenant(
    database: Database, database_url: str, customers: tuple[Customer, Customer]
) -> None:
    ours, theirs = customers
    for table, column in tenants_tables(database_url):
        copy = f"(jsonb_populate_record(t, jsonb_build_object('{column}', CAST(:id AS text)))).*"
        insert = f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT {copy} FROM {table} t LIMIT 1"
        with pytest.raises(ProgrammingError, match="row-level security"):
            await _run_as(database, ours, insert, id=theirs.tenant.id)


async def test_what_a_door_let_through_ends_with_its_transaction(
    database: Database, customers: tuple[Customer, Customer]
) -> None:
    ours, _ = customers
    for _ in range(10):  # the pool hands the same connections out again
        async with database.system_transaction() as connection:
            assert await num_rows(connection, "tenant") == 2
        async with database.tenant_transaction(ours.tenant.id) as connection:
            assert await num_rows(connection, "tenant") == 1


async def test_the_owner_is_bound_as_well_and_migrates_all_the_same(
    database_url: str, customers: tuple[Customer, Customer]
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE ROLE plain_owner NOSUPERUSER NOBYPASSRLS")
        connection.execute("ALTER TABLE tenant OWNER TO plain_owner")
        connection.execute("SET LOCAL ROLE plain_owner")
        assert connection.execute("SELECT count(*) FROM tenant").fetchone() == (0,)
        connection.execute("SET LOCAL sluice.reach = 'all'")
        assert connection.execute("SELECT count(*) FROM tenant").fetchone() == (2,)
        connection.rollback()
    downgrade(database_url, "20261204_leases")
    upgrade(database_url)
    assert value(database_url, "SELECT count(*) FROM tenant") == 2


async def _run_as(database: Database, customer: Customer, statement: str, **values: object) -> int:
    """The number of rows it changed."""
    async with database.tenant_transaction(customer.tenant.id) as connection:
        return (await connection.execute(text(statement), values)).rowcount


def _rows_of(url: str, customer: Customer) -> dict[str, list[object]]:
    """Everything that is stored of a tenant."""
    with psycopg.connect(url) as connection:
        return {
            table: list(
                connection.execute(
                    sql.SQL("SELECT t::text FROM {} t WHERE {} = %s ORDER BY 1").format(
                        sql.Identifier(table), sql.Identifier(column)
                    ),
                    [customer.tenant.id],
                ).fetchall()
            )
            for table, column in tenants_tables(url)
        }
