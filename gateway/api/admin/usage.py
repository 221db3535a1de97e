"""`/admin/v1/usage`: what was used, by whom and when. There is only reading."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime

from gateway import usage_administration
from gateway.api.admin.described import answered, described
from gateway.api.admin.desk import Desk, desk_for
from gateway.api.admin.pages import Named
from gateway.operators.scopes import OperatorScope
from gateway.usage.reports import UsageAt, UsageOf, Used
from gateway.usage.span import Span
from gateway.usage_administration import By, Report

router = APIRouter(prefix="/usage", tags=["Management: usage"])

DEFAULT_SPAN: Final = timedelta(hours=24)

MostRows = Annotated[int, Query(ge=1, le=1_000, description="How many rows at most.")]
Since = Annotated[AwareDatetime | None, Query(description="From this minute on; without it: 24 hours ago.")]
Until = Annotated[AwareDatetime | None, Query(description="Until before this minute; without it: up to now.")]
AfterRow = Annotated[str | None, Query(max_length=1_000, description="The `next` of the page before.")]


class UsedView(msgspec.Struct, frozen=True):
    """Requests that were admitted, and the tokens they used; `cached_tokens` are some of the prompts'."""

    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens: int


class UsageOfView(msgspec.Struct, frozen=True, tag_field="object", tag="usage_of"):
    """Of one tenant, project, key, model or class; `tenant_name` is whose it is, where it is somebody's."""

    id: str
    name: str
    tenant_name: str | None
    used: UsedView


class UsageAtView(msgspec.Struct, frozen=True, tag_field="object", tag="usage_at"):
    """Of the day (UTC) or minute that begins at `at`."""

    at: datetime
    used: UsedView


class UsageReport(msgspec.Struct, frozen=True):
    """A page of rows, and the `total` of the whole span. `next` is the `after` of the next page, if any."""

    by: By
    since: datetime
    until: datetime | None
    data: list[UsageOfView | UsageAtView]
    has_more: bool
    next: str | None
    total: UsedView
    object: Literal["usage_report"] = "usage_report"


SHAPES: Final = (UsageReport, UsageOfView, UsageAtView, UsedView)


@router.get("", summary="Report what was used", **described(UsageReport, errors=(404,)))
async def report_usage(
    by: By = By.TENANT,
    tenant: Named = None,
    since: Since = None,
    until: Until = None,
    limit: MostRows = 100,
    after: AfterRow = None,
    desk: Desk = desk_for(OperatorScope.USAGE_READ),
) -> Response:
    """Everybody's use, or one tenant's: who used most first, or days and minutes in their order.

    Where nothing was used there is no row. Minutes are kept for some weeks, days for a year. Without `until`,
    what comes meanwhile may move rows from one page to another.
    """
    span = Span(since or datetime.now(UTC) - DEFAULT_SPAN, until)
    report = await usage_administration.usage_report(
        desk.database, by, span, tenant_name_or_id=tenant, limit=limit, after=after
    )
    return answered(_view(report, by, span))


def _view(report: Report, by: By, span: Span) -> UsageReport:
    return UsageReport(
        by=by,
        since=span.since,
        until=span.until,
        data=[_row(row) for row in report.rows],
        has_more=report.next is not None,
        next=report.next,
        total=_used(report.total),
    )


def _row(row: UsageOf | UsageAt) -> UsageOfView | UsageAtView:
    match row:
        case UsageAt():
            return UsageAtView(at=row.at, used=_used(row))
        case UsageOf():
            return UsageOfView(id=row.id, name=row.name, tenant_name=row.tenant_name, used=_used(row))


def _used(used: Used) -> UsedView:
    return UsedView(
        num_requests=used.num_requests,
        prompt_tokens=used.prompt_tokens,
        cached_tokens=used.cached_tokens,
        completion_tokens=used.completion_tokens,
        tokens=used.tokens,
    )
