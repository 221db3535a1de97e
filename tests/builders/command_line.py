"""The `sluice` command in this process, as an operator types it."""

import asyncio
from dataclasses import dataclass

from typer.testing import CliRunner

from deploy.cli import app
from deploy.foreseeable import FORESEEABLE


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    errors: str


class Command:
    """`sluice`, on one database, in a thread of its own."""

    def __init__(self, database_url: str, **environment: str) -> None:
        self._database_url = database_url
        self._environment = environment

    async def __call__(self, *arguments: str) -> Ended:
        command = [*arguments, "--database-url", self._database_url]
        runner = CliRunner(env={"COLUMNS": "200", **self._environment})
        result = await asyncio.to_thread(runner.invoke, app, command)
        is_foreseeable = isinstance(result.exception, FORESEEABLE)
        return Ended(
            status=result.exit_code,
            output=result.stdout,
            errors=f"sluice: {result.exception}" if is_foreseeable else result.stderr,
        )
