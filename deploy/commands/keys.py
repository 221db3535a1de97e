"""`sluice keys`: what lets a tenant's programs in."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from deploy.commands.options import AsJson, ConfigFile, DatabaseUrl, DataDir
from deploy.commands.store_access import print_json, print_table, with_store
from deploy.commands.tenants import ACTOR
from deploy.configuration import DEFAULT_DATA_DIR, key_pepper, use_config_file, use_secrets_of
from deploy.data_directory import DataDirectory
from deploy.store import configured_url
from gateway import administration
from gateway.db import Database
from gateway.keys.key import ApiKey, IssuedKey
from gateway.tenants.ids import KeyId

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Create, list, rotate and revoke API keys."
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the key and nothing else.")]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="The tenant's name.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "key",
    expires_in_days: Annotated[int | None, typer.Option(min=1, max=36_500, help="Without it: never.")] = None,
    quiet: Quiet = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Makes a key. Its secret is shown this once."""
    pepper = _pepper(data_dir, database_url, config)
    expires_at = None if expires_in_days is None else datetime.now(UTC) + timedelta(days=expires_in_days)

    async def verb(database: Database) -> IssuedKey:
        return await administration.issue_key(
            database, pepper, ACTOR, tenant, name=name, expires_at=expires_at
        )

    issued = with_store(verb, data_dir=data_dir, database_url=database_url)
    _print_issued(issued, quiet=quiet, as_json=as_json)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Shows keys, newest first. Secrets are never shown."""

    async def verb(database: Database) -> list[ApiKey]:
        return list(await administration.list_keys(database, tenant))

    keys = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    print_table(
        ["id", "tenant", "name", "key", "last used", "expires", "state"],
        [_row(key) for key in keys],
        empty="No keys yet. Make one: sluice keys create --tenant NAME",
    )


@app.command()
def rotate(
    key: Annotated[str, typer.Argument(help="The key's id, as `sluice keys list` shows it.")],
    quiet: Quiet = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Makes a new key in the place of an old one, which is revoked."""
    pepper = _pepper(data_dir, database_url, config)

    async def verb(database: Database) -> IssuedKey:
        return await administration.rotate_key(database, pepper, ACTOR, KeyId(key))

    issued = with_store(verb, data_dir=data_dir, database_url=database_url)
    _print_issued(issued, quiet=quiet, as_json=as_json)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The key's id, as `sluice keys list` shows it.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Ends a key; it is refused everywhere within 2 seconds."""

    async def verb(database: Database) -> ApiKey:
        return await administration.revoke_key(database, ACTOR, KeyId(key))

    revoked = with_store(verb, data_dir=data_dir, database_url=database_url)
    print(f"Key {revoked.redacted_value} of {revoked.tenant_name} revoked.")


def _pepper(data_dir: Path, database_url: str | None, config: Path | None) -> bytes:
    """The pepper of this installation; an embedded one keeps it in its data directory."""
    use_config_file(config)
    if configured_url(database_url) is None:
        directory = DataDirectory(data_dir)
        directory.create()
        use_secrets_of(directory)
    return key_pepper()


def _print_issued(issued: IssuedKey, *, quiet: bool, as_json: bool) -> None:
    if quiet:
        print(issued.secret)
    elif as_json:
        print_json({"secret": issued.secret, **asdict(issued.key)})
    else:
        print(f"Key {issued.key.id} for {issued.key.tenant_name}, shown this once:\n\n  {issued.secret}\n")


def _row(key: ApiKey) -> list[object]:
    def day(moment: datetime | None) -> str:
        return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M}"

    return [
        key.id,
        key.tenant_name,
        key.name,
        key.redacted_value,
        day(key.last_used_at),
        day(key.expires_at),
        key.state(datetime.now(UTC)).value,
    ]
