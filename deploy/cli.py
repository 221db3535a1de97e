"""The `sluice` command: what it offers, and how it ends when something foreseeable is wrong."""

from importlib.metadata import version
from typing import Annotated

import typer
from sqlalchemy.exc import OperationalError, ProgrammingError

from deploy.commands import bench, keys, operators, processes, scheduler, tenants
from deploy.data_directory import DataDirectoryError
from deploy.embedded_postgres import EmbeddedPostgresError
from deploy.failure import Failure, fail
from deploy.listener import AddressUnavailable
from deploy.models import ModelNotAvailable
from deploy.supervisor import ChildFailed
from gateway.errors import StoreUnavailable
from gateway.setting_sources import ConfigurationError
from gateway.tenants.errors import AdministrationError

FORESEEABLE = (
    AddressUnavailable,
    AdministrationError,
    ChildFailed,
    ConfigurationError,
    DataDirectoryError,
    EmbeddedPostgresError,
    Failure,
    ModelNotAvailable,
    StoreUnavailable,
)

app = typer.Typer(
    name="sluice",
    help="One language model, many tenants.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    processes.serve,
    processes.gateway,
    processes.engine,
    processes.admin,
    processes.migrate,
):
    app.command()(command)
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.add_typer(operators.app, name="operators")
app.add_typer(scheduler.app, name="scheduler")
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def show_version(
    is_asked_for: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """One language model, many tenants."""
    if is_asked_for:
        print(f"sluice {version('sluice-llm')}")
        raise typer.Exit


def main() -> None:
    """Runs the command line; a foreseeable failure is one line on standard error and status 1."""
    try:
        app()
    except FORESEEABLE as error:
        fail(error)
    except OperationalError as error:
        fail(f"the database cannot be reached: {str(error.orig).splitlines()[0]}")
    except ProgrammingError as error:
        fail(f"the database refuses: {str(error.orig).splitlines()[0]}")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
