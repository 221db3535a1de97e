"""How a command reaches the store and its secrets, and what it prints of it: tables and JSON."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from deploy.configuration import key_pepper, use_config_file, use_secrets_of
from deploy.data_directory import DataDirectory
from deploy.store import configured_url, store_url
from gateway.db import Database

Result = TypeVar("Result")

WIDE = 10_000  # columns of what is no terminal


def with_store(
    verb: Callable[[Database], Awaitable[Result]], *, data_dir: Path, database_url: str | None
) -> Result:
    """Runs one verb on the store and closes it again."""

    async def run(url: str) -> Result:
        database = Database.connect(url, application_name="sluice command", pool_size=1)
        try:
            return await verb(database)
        finally:
            await database.close()

    with store_url(data_dir=data_dir, database_url=database_url) as url:
        return asyncio.run(run(url))


def pepper_of(*, data_dir: Path, database_url: str | None, config: Path | None) -> bytes:
    """The pepper of this installation's keys; an embedded one keeps it in its data directory."""
    use_config_file(config)
    if configured_url(database_url) is None:
        directory = DataDirectory(data_dir)
        directory.create()
        use_secrets_of(directory)
    return key_pepper()


def print_json(value: object) -> None:
    """One JSON document; dates in ISO form."""
    print(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """A table for people, or one line when there is nothing."""
    if not rows:
        print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")  # what is cut cannot be copied
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    # What stands in a cell is text, whatever brackets and colons it has.
    Console(width=None if sys.stdout.isatty() else WIDE, markup=False, emoji=False).print(table)
