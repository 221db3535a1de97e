"""How a command reaches the store, and what it prints of it: tables and JSON."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from deploy.store import store_url
from gateway.db import Database

Result = TypeVar("Result")


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


def print_json(value: object) -> None:
    """One JSON document; dates in ISO form."""
    print(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """A table for people, or one line when there is nothing."""
    if not rows:
        print(empty)
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console().print(table)
