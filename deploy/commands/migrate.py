"""`sluice migrate`."""

import typer

from deploy.commands.options import DatabaseUrl, DataDir
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.store import configured_url, store_url
from migrations import run as migrations

app = typer.Typer(add_completion=False)


@app.command()
def migrate(data_dir: DataDir = DEFAULT_DATA_DIR, database_url: DatabaseUrl = None) -> None:
    """Brings the database to the newest schema."""
    external = configured_url(database_url)
    if external is not None:
        migrations.upgrade(external)
    else:
        with store_url(data_dir=data_dir, database_url=None):
            pass  # an embedded store that is up has the newest schema
    print("The database has the newest schema.")
