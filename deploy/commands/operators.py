"""`sluice operators`: a way into the admin UI for somebody who has none, and keys for operators' programs."""

from typing import Annotated

import typer

from deploy.commands import operator_keys
from deploy.commands.options import DatabaseUrl, DataDir
from deploy.commands.store_access import with_store
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.data_directory import DataDirectory
from gateway.operators.service import create_invite

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Let operators and their programs in.")
app.add_typer(operator_keys.app, name="keys")


@app.callback()
def operators() -> None:
    """Let operators and their programs in."""


@app.command()
def invite(
    admin_url: Annotated[
        str | None,
        typer.Option(
            help="Where the admin UI is reached.", show_default="where `sluice serve` last served it"
        ),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Prints a link with which one person can choose a name and a password, once, within 24 hours."""
    token = with_store(create_invite, data_dir=data_dir, database_url=database_url)
    known = DataDirectory(data_dir).admin_url
    url = admin_url or (known.read_text().strip() if known.exists() else "http://127.0.0.1:8081")
    print(f"{url.rstrip('/')}/setup/{token}")
