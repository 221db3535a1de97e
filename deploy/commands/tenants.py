"""`sluice tenants`: who may use the model, and how much of it."""

import re
from dataclasses import asdict
from typing import Annotated

import typer

from deploy.commands.options import AsJson, DatabaseUrl, DataDir
from deploy.commands.store_access import print_json, print_table, with_store
from deploy.configuration import DEFAULT_DATA_DIR
from gateway import administration, engine_administration
from gateway.administration import TenantSummary
from gateway.db import Database
from gateway.quotas.limits import MAX_LIMIT, TenantLimits
from gateway.tenants.tenant import Tenant

ACTOR = "sluice command"
UNLIMITED = "unlimited"
COLUMNS = [
    "name",
    "weight",
    "cache group",
    "keys",
    "in use",
    "concurrent requests",
    "tokens per minute",
    "state",
]

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Create, list and change tenants.")

Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrent-requests", min=0, max=MAX_LIMIT, help="Most requests at once. Without it: unlimited."
    ),
]
TokensPerMinute = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-minute",
        min=0,
        max=MAX_LIMIT,
        help="Most prompt and output tokens. Without it: unlimited.",
    ),
]


def _checked_limit(text: str | None) -> str | None:
    if text is None or text == UNLIMITED or (re.fullmatch("[0-9]{1,13}", text) and int(text) <= MAX_LIMIT):
        return text
    raise typer.BadParameter(f"a limit is a number up to {MAX_LIMIT} or '{UNLIMITED}', not '{text}'")


@app.command()
def create(
    name: str,
    concurrent_requests: Concurrency = None,
    tokens_per_minute: TokensPerMinute = None,
    weight: Annotated[float, typer.Option(help="Share of the model relative to other tenants.")] = 1.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Makes a tenant with its first project."""
    limits = TenantLimits(concurrent_requests=concurrent_requests, tokens_per_minute=tokens_per_minute)

    async def verb(database: Database) -> Tenant:
        return await administration.create_tenant(database, ACTOR, name, limits=limits, weight=weight)

    tenant = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json(asdict(tenant))
    else:
        print(f"Tenant {tenant.name} made. A key for it: sluice keys create --tenant {tenant.name}")


@app.command("list")
def list_(
    data_dir: DataDir = DEFAULT_DATA_DIR, database_url: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """Shows every tenant with its limits and what it has in use."""
    summaries = with_store(administration.list_tenants, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json([asdict(summary) for summary in summaries])
        return
    print_table(
        COLUMNS,
        [_row(summary) for summary in summaries],
        empty="No tenants yet. Make one: sluice tenants create NAME",
    )


@app.command()
def show(
    name: str,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Shows one tenant."""

    async def verb(database: Database) -> TenantSummary:
        return await administration.get_tenant(database, name)

    summary = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json(asdict(summary))
        return
    values = [summary.tenant.id, *_row(summary)]
    print_table(["", ""], list(zip(["id", *COLUMNS], values, strict=True)), empty="")


@app.command()
def update(
    name: str,
    concurrent_requests: Annotated[
        str | None,
        typer.Option("--concurrent-requests", callback=_checked_limit, help="A number, or 'unlimited'."),
    ] = None,
    tokens_per_minute: Annotated[
        str | None,
        typer.Option("--tokens-per-minute", callback=_checked_limit, help="A number, or 'unlimited'."),
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Share of the model relative to other tenants.")
    ] = None,
    cache_group: Annotated[
        str | None,
        typer.Option(
            "--cache-group", help="Share the memory of system prompts with the tenants of this group."
        ),
    ] = None,
    leaves_cache_group: Annotated[
        bool, typer.Option("--no-cache-group", help="Share no memory with anybody.")
    ] = False,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether its keys let anybody in.")
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Changes limits, weight or cache group, or switches a tenant off and on. What is not named stays."""
    if cache_group is not None and leaves_cache_group:
        raise typer.BadParameter("a tenant joins a group or leaves it", param_hint="--no-cache-group")

    async def verb(database: Database) -> None:
        if weight is not None:
            await engine_administration.set_weight(database, ACTOR, name, weight)
        if cache_group is not None or leaves_cache_group:
            await administration.set_cache_group(database, ACTOR, name, cache_group)
        limits = (await administration.get_tenant(database, name)).limits
        changed = TenantLimits(
            concurrent_requests=_limit(concurrent_requests, limits.concurrent_requests),
            tokens_per_minute=_limit(tokens_per_minute, limits.tokens_per_minute),
        )
        if changed != limits:
            await administration.set_limits(database, ACTOR, name, changed)
        if enabled is not None:
            await administration.set_tenant_enabled(database, ACTOR, name, enabled=enabled)

    with_store(verb, data_dir=data_dir, database_url=database_url)
    print(f"Tenant {name} changed; it binds within 2 seconds.")


def _limit(text: str | None, current: int | None) -> int | None:
    if text is None:
        return current
    return None if text == UNLIMITED else int(text)


def _row(summary: TenantSummary) -> list[object]:
    def shown(limit: int | None) -> object:
        return UNLIMITED if limit is None else limit

    return [
        summary.tenant.name,
        f"{summary.tenant.weight:g}",
        summary.tenant.cache_group,
        summary.num_keys,
        summary.num_live_requests,
        shown(summary.limits.concurrent_requests),
        shown(summary.limits.tokens_per_minute),
        "enabled" if summary.tenant.disabled_at is None else "disabled",
    ]
