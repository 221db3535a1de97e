"""`sluice usage`: what was used, by whom and when."""

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from deploy.commands.options import AsJson, DatabaseUrl, DataDir
from deploy.commands.store_access import print_json, print_table, with_store
from deploy.configuration import DEFAULT_DATA_DIR
from gateway import usage_administration
from gateway.db import Database
from gateway.usage.reports import UsageAt, UsageOf, Used
from gateway.usage.span import Span
from gateway.usage_administration import By, Report

MAX_HOURS: Final = 7 * 24  # gateways keep minutes for at least a week
COUNTS: Final = ["requests", "prompt tokens", "of them cached", "output tokens", "tokens"]

app = typer.Typer(add_completion=False)


def _moment(text: str) -> datetime:
    """Since when: so many hours ago, the midnight (UTC) so many days ago, or a date's."""
    now = datetime.now(UTC)
    if re.fullmatch("[0-9]{1,3}h", text) and int(text[:-1]) <= MAX_HOURS:
        return now - timedelta(hours=int(text[:-1]))
    if re.fullmatch("[0-9]{1,4}d", text):
        return datetime.combine(now - timedelta(days=int(text[:-1])), datetime.min.time(), UTC)
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise typer.BadParameter(
            f"write 24h (up to {MAX_HOURS}h), 7d or 2026-11-01, not '{text}'", param_hint="--since"
        ) from error


@app.command()
def usage(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    by: Annotated[By, typer.Option(help="What the rows are.")] = By.TENANT,
    since: Annotated[
        str,
        typer.Option(help="Hours (24h), days (7d: from that day's midnight, UTC) or a date (2026-11-01)."),
    ] = "24h",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most rows.")] = 100,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Shows requests and tokens, who used most first; days and minutes in their order."""
    span = Span(since=_moment(since))

    async def verb(database: Database) -> Report:
        return await usage_administration.usage_report(
            database, by, span, tenant_name_or_id=tenant, limit=limit
        )

    report = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json(_as_json(report, by, span))
        return
    print_table(_columns(by), _table(report, by), empty="Nothing was used.")
    if report.next is not None:
        print(f"The first {limit} rows; --limit shows more.")


def _columns(by: By) -> list[str]:
    owner = ["tenant"] if by in (By.PROJECT, By.KEY) else []
    key = ["id"] if by is By.KEY else []
    return [*owner, by.value, *key, *COUNTS]


def _table(report: Report, by: By) -> list[list[object]]:
    rows = [[*_names(row, by), *_counts(row)] for row in report.rows]
    if len(rows) > 1:
        num_names = len(rows[0]) - len(COUNTS)
        rows.append(["total", *[""] * (num_names - 1), *_counts(report.total)])
    return rows


def _names(row: UsageOf | UsageAt, by: By) -> list[object]:
    match row:
        case UsageAt():
            at = row.at.astimezone(UTC)
            return [f"{at:%Y-%m-%d}" if by is By.DAY else f"{at:%Y-%m-%d %H:%M}"]
        case UsageOf():
            owner = [row.tenant_name] if by in (By.PROJECT, By.KEY) else []
            return [*owner, row.name, *([row.id] if by is By.KEY else [])]


def _counts(used: Used) -> list[object]:
    return [
        used.num_requests,
        used.prompt_tokens,
        used.cached_tokens,
        used.completion_tokens,
        used.tokens,
    ]


def _as_json(report: Report, by: By, span: Span) -> dict[str, Any]:
    return {
        "by": by.value,
        "since": span.since.isoformat(timespec="seconds"),
        "rows": [{**asdict(row), "tokens": row.tokens} for row in report.rows],
        "has_more": report.next is not None,
        "total": {**asdict(report.total), "tokens": report.total.tokens},
    }
