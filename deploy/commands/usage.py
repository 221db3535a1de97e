"""`sluice usage`: what was used, by whom and when."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from deploy.commands.options import AsJson, DatabaseUrl, DataDir
from deploy.commands.store_access import print_json, print_table, with_store
from deploy.configuration import DEFAULT_DATA_DIR
from gateway.db import Database
from gateway.tenants.lookup import tenant_called
from gateway.usage import reports
from gateway.usage.reports import Dimension, UsageAt, UsageOf, Used
from gateway.usage.span import Span, Unit

MAX_HOURS: Final = 7 * 24  # gateways keep minutes for at least a week
COUNTS: Final = ["requests", "prompt tokens", "of them cached", "output tokens", "tokens"]

app = typer.Typer(add_completion=False)


class By(StrEnum):
    """What the rows of the table are."""

    TENANT = "tenant"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    CLASS = "class"
    DAY = "day"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The rows that were asked for, and the sum of all there are."""

    rows: Sequence[UsageOf | UsageAt]
    total: Used
    has_more: bool


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
    """Shows requests and tokens, who used most first; days in their order."""
    span = Span(since=_moment(since))

    async def verb(database: Database) -> Report:
        return await _report(database, tenant, by, span, limit=limit)

    report = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json(_as_json(report, by, span))
        return
    print_table(_columns(by), _table(report, by), empty="Nothing was used.")
    if report.has_more:
        print(f"The first {limit} rows; --limit shows more.")


async def _report(database: Database, tenant: str | None, by: By, span: Span, *, limit: int) -> Report:
    async with database.system_transaction() as connection:
        tenant_id = None if tenant is None else (await tenant_called(connection, tenant)).id
        rows: Sequence[UsageOf | UsageAt]
        if by is By.DAY:
            rows = await reports.over_time(connection, Unit.DAY, span, tenant_id=tenant_id, limit=limit + 1)
        else:
            rows = await reports.by(
                connection, Dimension(by.value), span, tenant_id=tenant_id, limit=limit + 1
            )
        total = await reports.total(connection, span, tenant_id=tenant_id)
    return Report(rows=rows[:limit], total=total, has_more=len(rows) > limit)


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
            return [f"{row.at.astimezone(UTC):%Y-%m-%d}"]
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
        "has_more": report.has_more,
        "total": {**asdict(report.total), "tokens": report.total.tokens},
    }
