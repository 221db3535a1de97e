"""What the command line refuses before it asks the store, and what it imports meanwhile."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from deploy.cli import app


@pytest.mark.parametrize("option", ["--concurrent-requests", "--tokens-per-minute"])
@pytest.mark.parametrize("verb", ["create", "update"])
@pytest.mark.parametrize("value", ["99999999999999999999", "1000000000001", "-1", "many"])
def test_a_limit_that_cannot_be_stored_is_wrong_usage(verb: str, option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["tenants", verb, "acme", option, value])
    assert result.exit_code == 2
    assert option in result.output


IMPORTED_BY = """
import sys
from typer.testing import CliRunner
from deploy.cli import app
assert CliRunner().invoke(app, sys.argv[1].split()).exit_code == 0
print(*sys.modules)
"""


def imported_by(arguments: str) -> set[str]:
    """The modules that a process has once it ran that command."""
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED_BY, arguments], capture_output=True, text=True, check=True
    )
    return set(ended.stdout.split())


@pytest.mark.parametrize("arguments", ["engine --help", "--version"])
def test_an_engine_does_not_wait_for_what_it_does_not_use(arguments: str) -> None:
    for_others = {"aiohttp", "alembic", "fastapi", "jinja2", "psycopg", "sqlalchemy"}
    assert not imported_by(arguments) & for_others


def test_settings_are_checked_before_torch_is_imported() -> None:
    assert "torch" not in imported_by("engine --help")


def test_a_command_that_is_misspelt_is_told_the_right_one() -> None:
    result = CliRunner().invoke(app, ["tenant", "list"])
    assert result.exit_code == 2
    assert "tenants" in result.output
