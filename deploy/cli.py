"""The `sluice` command: what it offers, and how it ends when something foreseeable is wrong.

A command's module is imported when the command is asked for: none waits for the libraries of another one.
"""

from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from deploy.failure import fail

COMMANDS: Final = (
    "serve",
    "gateway",
    "engine",
    "admin",
    "migrate",
    "tenants",
    "projects",
    "keys",
    "limits",
    "operators",
    "scheduler",
    "usage",
    "batch",
    "bench",
)
"""Each is the `app` of the module of that name in deploy/commands."""


class Commands(TyperGroup):
    """The commands, imported one by one."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name. Where there is none, all are imported: a similar one is suggested."""
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                command = typer.main.get_command(import_module(f"deploy.commands.{name}").app)
                command.name = name
                self.commands[name] = command
        return self.commands.get(cmd_name)


app = typer.Typer(
    name="sluice",
    help="One language model, many tenants.",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def show_version(
    is_asked_for: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """One language model, many tenants."""
    if is_asked_for:
        from importlib.metadata import version

        print(f"sluice {version('sluice-llm')}")
        raise typer.Exit


def main() -> None:
    """Runs the command line; a foreseeable failure is one line on standard error and status 1."""
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        from deploy import foreseeable

        line = foreseeable.line_for(error)
        if line is None:
            raise
        fail(line)
