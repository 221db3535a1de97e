"""`sluice keys`: what lets a tenant's programs in."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from deploy.commands.options import AsJson, ConfigFile, DatabaseUrl, DataDir
from deploy.commands.store_access import pepper_of, print_json, print_table, with_store
from deploy.commands.tenants import ACTOR
from deploy.configuration import DEFAULT_DATA_DIR
from gateway import key_administration
from gateway.db import Database
from gateway.key_administration import DEFAULT_OVERLAP, MAX_OVERLAP
from gateway.keys.key import ApiKey, IssuedKey, KeyTerms
from gateway.keys.scope import ALL_SCOPES, Scope
from gateway.tenants.ids import KeyId

HOUR = timedelta(hours=1)

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Create, list, change, rotate and revoke API keys."
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the key and nothing else.")]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="The tenant's name.")],
    project: Annotated[
        str | None, typer.Option(help="One of the tenant's projects.", show_default="its first")
    ] = None,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "key",
    scopes: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="What it may be used for; may be repeated. Without it: everything."),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A model it may use; may be repeated. Without it: all of them."),
    ] = None,
    expires_in_days: Annotated[int | None, typer.Option(min=1, max=36_500, help="Without it: never.")] = None,
    weight: Annotated[float, typer.Option(help="Share relative to the project's other keys.")] = 1.0,
    quiet: Quiet = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Makes a key. Its secret is shown this once."""
    pepper = pepper_of(data_dir=data_dir, database_url=database_url, config=config)

    async def verb(database: Database) -> IssuedKey:
        return await key_administration.issue_key(
            database,
            pepper,
            ACTOR,
            tenant,
            name=name,
            project=project,
            weight=weight,
            scopes=scopes or ALL_SCOPES,
            models=models or None,
            expires_at=_in_days(expires_in_days),
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
        return list(await key_administration.list_keys(database, tenant))

    keys = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    print_table(
        ["id", "tenant", "project", "name", "key", "may", "last used", "expires", "state"],
        [_row(key) for key in keys],
        empty="No keys yet. Make one: sluice keys create --tenant NAME",
    )


@app.command("set")
def set_(
    key: Annotated[str, typer.Argument(help="The key's id, as `sluice keys list` shows it.")],
    name: Annotated[str | None, typer.Option(help="What the key is for.")] = None,
    scopes: Annotated[
        list[Scope] | None, typer.Option("--scope", help="What it may be used for; may be repeated.")
    ] = None,
    has_all_scopes: Annotated[bool, typer.Option("--all-scopes", help="For everything.")] = False,
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A model it may use; may be repeated.")
    ] = None,
    has_all_models: Annotated[bool, typer.Option("--all-models", help="With all of them.")] = False,
    expires_in_days: Annotated[int | None, typer.Option(min=1, max=36_500, help="From now.")] = None,
    never_expires: Annotated[bool, typer.Option("--no-expiry", help="It never ends by itself.")] = False,
    weight: Annotated[float | None, typer.Option(help="Share relative to the project's other keys.")] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Changes what a key is called, its weight, what it may be used for, or until when. The rest stays."""
    terms = KeyTerms()
    if name is not None:
        terms["name"] = name
    if weight is not None:
        terms["weight"] = weight
    if _changes("--all-scopes", is_lifted=has_all_scopes, given=scopes):
        terms["scopes"] = tuple(scopes or Scope)
    if _changes("--all-models", is_lifted=has_all_models, given=models):
        terms["models"] = tuple(models) if models else None
    if _changes("--no-expiry", is_lifted=never_expires, given=expires_in_days):
        terms["expires_at"] = _in_days(expires_in_days)
    if not terms:
        raise typer.BadParameter("say what of it changes", param_hint="KEY")

    async def verb(database: Database) -> ApiKey:
        return await key_administration.change_key(database, ACTOR, KeyId(key), terms)

    changed = with_store(verb, data_dir=data_dir, database_url=database_url)
    uses, until = _uses(changed), _minute(changed.expires_at)
    print(f"Key {changed.name} of {changed.tenant_name}: {uses}; expires {until}. It binds within 2 seconds.")


@app.command()
def rotate(
    key: Annotated[str, typer.Argument(help="The key's id, as `sluice keys list` shows it.")],
    overlap_hours: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_OVERLAP // HOUR, help="How long the old secret works beside the new one."
        ),
    ] = DEFAULT_OVERLAP // HOUR,
    quiet: Quiet = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Gives a key a new secret, shown this once. The old one works on for a day, or as long as is said."""
    pepper = pepper_of(data_dir=data_dir, database_url=database_url, config=config)

    async def verb(database: Database) -> IssuedKey:
        return await key_administration.rotate_key(
            database, pepper, ACTOR, KeyId(key), overlap=overlap_hours * HOUR
        )

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
        return await key_administration.revoke_key(database, ACTOR, KeyId(key))

    revoked = with_store(verb, data_dir=data_dir, database_url=database_url)
    print(f"Key {revoked.redacted_value} of {revoked.tenant_name} revoked.")


def _changes(option: str, *, is_lifted: bool, given: object) -> bool:
    """Whether a term of a key is given anew, or lifted by `option`."""
    if is_lifted and given:
        raise typer.BadParameter("give it or lift it, not both", param_hint=option)
    return is_lifted or bool(given)


def _in_days(num_days: int | None) -> datetime | None:
    return None if num_days is None else datetime.now(UTC) + timedelta(days=num_days)


def _print_issued(issued: IssuedKey, *, quiet: bool, as_json: bool) -> None:
    key = issued.key
    if quiet:
        print(issued.secret)
    elif as_json:
        print_json({"secret": issued.secret, **asdict(key)})
    else:
        print(f"Key {key.id} for {key.tenant_name}, shown this once:\n\n  {issued.secret}\n")
        if key.previous_redacted_value is not None:
            print(f"The secret before it, {key.previous_redacted_value}, {_fate(key, datetime.now(UTC))}.")


def _fate(key: ApiKey, now: datetime) -> str:
    """What becomes of a key's previous secret."""
    ends_at = key.overlap_ends_at(now)
    return "is refused within 2 seconds" if ends_at is None else f"works until {_minute(ends_at)} UTC"


def _row(key: ApiKey) -> list[object]:
    return [
        key.id,
        key.tenant_name,
        key.project_name,
        key.name,
        key.redacted_value,
        _uses(key),
        _minute(key.last_used_at),
        _minute(key.expires_at),
        _state(key, datetime.now(UTC)),
    ]


def _uses(key: ApiKey) -> str:
    uses = "everything" if len(key.scopes) == len(Scope) else ", ".join(key.scopes)
    return uses if key.models is None else f"{uses} with {', '.join(key.models)}"


def _state(key: ApiKey, now: datetime) -> str:
    if (ends_at := key.overlap_ends_at(now)) is None:
        return key.state(now).value
    return f"{key.state(now).value}, also {key.previous_redacted_value} until {_minute(ends_at)}"


def _minute(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"
