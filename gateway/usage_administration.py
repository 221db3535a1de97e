"""What operators may ask of the ledger: who used how much, page by page. Nothing is changed.

Raises AdministrationError with a line for the operator, or StoreUnavailable.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import Database
from gateway.tenants.errors import BadValue
from gateway.tenants.ids import TenantId
from gateway.tenants.lookup import tenant_called
from gateway.usage import reports
from gateway.usage.reports import Dimension, Rank, UsageAt, UsageOf, Used
from gateway.usage.span import Span, Unit

FIRST_YEAR: Final = 2000
LAST_YEAR: Final = 9998  # what is later cannot be counted with in another time zone


class By(StrEnum):
    """What the rows of a report are."""

    TENANT = "tenant"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    CLASS = "class"
    DAY = "day"
    MINUTE = "minute"


_STEPS: Final = {By.DAY: timedelta(days=1), By.MINUTE: timedelta(minutes=1)}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The rows that were asked for, and the sum of all there are. `next`: where to go on, if anywhere."""

    rows: Sequence[UsageOf | UsageAt]
    total: Used
    next: str | None


async def usage_report(
    database: Database,
    by: By,
    span: Span,
    *,
    tenant_name_or_id: str | None = None,
    limit: int,
    after: str | None = None,
) -> Report:
    """At most `limit` rows of a tenant's use, or of everybody's: who used most first, time in its order.

    `after` is the `next` of the page before.
    """
    _check(span)
    async with database.system_transaction() as connection:
        tenant = None if tenant_name_or_id is None else await tenant_called(connection, tenant_name_or_id)
        tenant_id = None if tenant is None else tenant.id
        rows = await _rows(connection, by, span, tenant_id, limit=limit + 1, after=after)
        total = await reports.total(connection, span, tenant_id=tenant_id)
    return Report(rows=rows[:limit], total=total, next=_place(rows[limit - 1]) if len(rows) > limit else None)


async def _rows(
    connection: AsyncConnection,
    by: By,
    span: Span,
    tenant_id: TenantId | None,
    *,
    limit: int,
    after: str | None,
) -> Sequence[UsageOf | UsageAt]:
    if by in _STEPS:
        rest = span if after is None else Span(_moment(after) + _STEPS[by], span.until)
        return await reports.over_time(connection, Unit(by.value), rest, tenant_id=tenant_id, limit=limit)
    rank = None if after is None else _rank(after)
    return await reports.by(
        connection, Dimension(by.value), span, tenant_id=tenant_id, limit=limit, after=rank
    )


def _place(row: UsageOf | UsageAt) -> str:
    """Where a row is in its report, as `_moment` and `_rank` read it."""
    match row:
        case UsageAt():
            return f"{row.at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"
        case UsageOf():
            return f"{row.tokens}:{row.id}"


def _moment(place: str) -> datetime:
    try:
        moment = datetime.fromisoformat(place)
    except ValueError as error:
        raise _no_place(place) from error
    if moment.tzinfo is None or not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise _no_place(place)
    return moment


def _rank(place: str) -> Rank:
    tokens, _, id_ = place.partition(":")
    if not re.fullmatch("[0-9]{1,18}", tokens):
        raise _no_place(place)
    return Rank(tokens=int(tokens), id=id_)


def _no_place(place: str) -> BadValue:
    return BadValue(f"{place!r} is no place in this report: go on with the `next` of the page before.")


def _check(span: Span) -> None:
    years = [moment.year for moment in (span.since, span.until) if moment is not None]
    if not all(FIRST_YEAR <= year <= LAST_YEAR for year in years):
        raise BadValue(f"A report is of the years {FIRST_YEAR} to {LAST_YEAR}.")
    if span.until is not None and span.until <= span.since:
        raise BadValue("A report ends later than it begins.")
