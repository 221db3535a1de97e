"""The schema's versions, run as five processes at once and both ways."""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import NullPool, create_engine, text

from deploy.failure import Failure
from deploy.store import store_url
from gateway.db import Database, driver_url
from gateway.keys.scope import Scope
from migrations.run import downgrade, is_current, upgrade
from migrations.schema import metadata
from tests.builders.store_rows import rows

pytestmark = pytest.mark.postgres


def table_names(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {str(row[0]) for row in rows}


def test_five_processes_at_once_migrate_exactly_once(empty_database_url: str) -> None:
    with ProcessPoolExecutor(5, mp_context=get_context("spawn")) as processes:
        for outcome in [processes.submit(upgrade, empty_database_url) for _ in range(5)]:
            outcome.result()
    assert is_current(empty_database_url)


def test_the_newest_version_is_what_the_code_declares(database_url: str) -> None:
    with create_engine(driver_url(database_url), poolclass=NullPool).connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    assert differences == []


def test_a_command_on_a_database_without_our_schema_says_what_to_run(
    empty_database_url: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(Failure, match="sluice migrate"),
        store_url(data_dir=tmp_path, database_url=empty_database_url),
    ):
        pytest.fail("there is nothing to work on")


def test_down_and_up_again(database_url: str) -> None:
    downgrade(database_url, "base")
    assert table_names(database_url) == {"alembic_version"}
    assert not is_current(database_url)
    upgrade(database_url)
    assert is_current(database_url)


def test_keys_of_before_scopes_may_do_everything_and_survive_both_ways(empty_database_url: str) -> None:
    upgrade(empty_database_url, "20261201_engine_config")
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("INSERT INTO tenant (id, name, weight) VALUES ('t', 'acme', 1)")
        connection.execute("INSERT INTO project (id, tenant_id, name) VALUES ('p', 't', 'default')")
        connection.execute(
            "INSERT INTO api_key (id, tenant_id, project_id, name, secret_hash, redacted_value)"
            " VALUES ('k', 't', 'p', 'key', 'hash', 'sk-…abcd')"
        )
    upgrade(empty_database_url, "20261202_keys")
    terms = "SELECT scopes, models, previous_secret_hash FROM api_key"
    assert rows(empty_database_url, terms) == [(list(Scope), None, None)]
    downgrade(empty_database_url, "20261201_engine_config")
    assert rows(empty_database_url, "SELECT id, redacted_value FROM api_key") == [("k", "sk-…abcd")]
    upgrade(empty_database_url, "20261202_keys")
    assert rows(empty_database_url, terms) == [(list(Scope), None, None)]


def test_a_failed_migration_leaves_nothing_behind(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE TABLE usage_event (in_the_way int)")
    with pytest.raises(Exception, match="usage_event"):
        upgrade(empty_database_url)
    assert table_names(empty_database_url) == {"usage_event"}


def test_a_failed_migration_is_an_error_in_one_line_and_not_marked_as_done(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE TABLE usage_event (in_the_way int)")
    command = [sys.executable, "-m", "deploy", "migrate", "--database-url", empty_database_url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "usage_event" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not is_current(empty_database_url)


async def test_serving_connections_cannot_bypass_row_security(database: Database) -> None:
    async with database.system_transaction() as connection:
        row = (
            await connection.execute(
                text("SELECT rolname, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
            )
        ).one()
    assert tuple(row) == ("sluice_app", False, False)
