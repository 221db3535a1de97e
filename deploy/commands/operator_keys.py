"""`sluice operators keys`: what lets operators' programs into the management API."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from deploy.commands.options import AsJson, ConfigFile, DatabaseUrl, DataDir
from deploy.commands.store_access import pepper_of, print_json, print_table, with_store
from deploy.commands.tenants import ACTOR
from deploy.configuration import DEFAULT_DATA_DIR
from gateway import operator_administration
from gateway.db import Database
from gateway.operators.operator_key import IssuedOperatorKey, OperatorKey
from gateway.operators.scopes import OperatorScope

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Create, list and revoke keys of operators' programs."
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Which program it is for; the audit trail shows it.")],
    scopes: Annotated[list[OperatorScope], typer.Option("--scope", help="What it may do; may be repeated.")],
    expires_in_days: Annotated[int | None, typer.Option(min=1, max=36_500, help="Without it: never.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the key and nothing else.")] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Makes a key for /admin/v1. Its secret is shown this once."""
    pepper = pepper_of(data_dir=data_dir, database_url=database_url, config=config)
    expires_at = None if expires_in_days is None else datetime.now(UTC) + timedelta(days=expires_in_days)

    async def verb(database: Database) -> IssuedOperatorKey:
        return await operator_administration.issue_operator_key(
            database, pepper, ACTOR, name, scopes=scopes, expires_at=expires_at
        )

    issued = with_store(verb, data_dir=data_dir, database_url=database_url)
    if quiet:
        print(issued.secret)
    elif as_json:
        print_json({"secret": issued.secret, **asdict(issued.key)})
    else:
        print(f"Operator key {issued.key.name}, shown this once:\n\n  {issued.secret}\n")


@app.command("list")
def list_(
    data_dir: DataDir = DEFAULT_DATA_DIR, database_url: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """Shows every operator key. Secrets are never shown."""
    keys = with_store(
        operator_administration.list_operator_keys, data_dir=data_dir, database_url=database_url
    )
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    print_table(
        ["id", "name", "key", "scopes", "last used", "expires", "revoked"],
        [_row(key) for key in keys],
        empty="No operator keys yet. Make one: sluice operators keys create NAME --scope tenants.read",
    )


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The key's name or id.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Ends a key; it is refused everywhere within 2 seconds."""

    async def verb(database: Database) -> OperatorKey:
        return await operator_administration.revoke_operator_key(database, ACTOR, key)

    revoked = with_store(verb, data_dir=data_dir, database_url=database_url)
    print(f"Operator key {revoked.name} revoked.")


def _row(key: OperatorKey) -> list[object]:
    def moment(at: datetime | None) -> str:
        return "never" if at is None else f"{at:%Y-%m-%d %H:%M}"

    return [
        key.id,
        key.name,
        key.redacted_value,
        " ".join(key.scopes),
        moment(key.last_used_at),
        moment(key.expires_at),
        moment(key.revoked_at),
    ]
