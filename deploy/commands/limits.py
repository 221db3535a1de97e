"""`sluice limits`: how much a tenant, a project or a key may use at most."""

import re
from dataclasses import asdict
from typing import Annotated

import typer

from deploy.commands.options import AsJson, DatabaseUrl, DataDir
from deploy.commands.store_access import print_json, print_table, with_store
from deploy.commands.tenants import ACTOR, UNLIMITED
from deploy.configuration import DEFAULT_DATA_DIR
from engine.protocol import RequestClass
from gateway import limit_administration
from gateway.db import Database
from gateway.limit_administration import LimitUse, Target
from gateway.quotas.limits import MAX_LIMIT, QuotaKind

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Set and list limits of tenants, projects and keys."
)

Tenant = Annotated[str, typer.Option(help="The tenant's name.")]


def _checked_value(text: str) -> str:
    if text == UNLIMITED or (re.fullmatch("[0-9]{1,13}", text) and int(text) <= MAX_LIMIT):
        return text
    raise typer.BadParameter(f"a limit is a number up to {MAX_LIMIT} or '{UNLIMITED}', not '{text}'")


@app.command("set")
def set_(
    kind: Annotated[QuotaKind, typer.Argument(help="What is limited.")],
    value: Annotated[str, typer.Argument(callback=_checked_value, help=f"A number, or '{UNLIMITED}'.")],
    tenant: Tenant,
    project: Annotated[str | None, typer.Option(help="Only this project of the tenant.")] = None,
    key: Annotated[str | None, typer.Option(help="Only this key of the tenant, by its id.")] = None,
    model: Annotated[str | None, typer.Option(help="Only for this model.")] = None,
    request_class: Annotated[
        RequestClass | None, typer.Option("--class", help="Only for requests of this class.")
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Sets one limit, or lifts it. It binds within 2 seconds; what was used stays used."""
    target = Target(tenant=tenant, project=project, key=key, model=model, request_class=request_class)
    number = None if value == UNLIMITED else int(value)

    async def verb(database: Database) -> None:
        await limit_administration.set_limit(database, ACTOR, target, kind, number)

    with_store(verb, data_dir=data_dir, database_url=database_url)
    print(f"{kind} of {key or project or tenant} is now {value}; it binds within 2 seconds.")


@app.command("list")
def list_(
    tenant: Tenant,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Shows a tenant's limits, those of its projects and keys, and what is used of each."""

    async def verb(database: Database) -> list[LimitUse]:
        return list(await limit_administration.list_limits(database, tenant))

    uses = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json([{**asdict(use.limit), "used": use.used} for use in uses])
        return
    print_table(
        ["of", "id", "limit", "model", "class", "value", "used"],
        [_row(use) for use in uses],
        empty=f"{tenant} is not limited. Limit it: sluice limits set tokens_per_day 100000 --tenant {tenant}",
    )


def _row(use: LimitUse) -> list[object]:
    limit = use.limit
    return [
        limit.scope.value,
        limit.scope_id,
        limit.kind.value,
        limit.model or "all",
        limit.request_class or "both",
        limit.value,
        use.used if limit.is_counted else "",
    ]
