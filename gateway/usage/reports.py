"""What was used, by whom and when: read-only, from the sums alone and never from single events.

A report takes the id of the tenant it is about; without one it is about all tenants, for operators only.
Lists come in pages: the last row of one is where the next begins (`after`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Subquery,
    TableClause,
    cast,
    column,
    func,
    null,
    or_,
    select,
    table,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.tenants.ids import TenantId
from gateway.tenants.tables import project, tenant
from gateway.usage.span import Piece, Span, Unit, minutes_of, pieces
from gateway.usage.tables import usage_rollup_day, usage_rollup_minute

# Of keys, a slice beside this one, reports know what they are called, and nothing else.
_api_key: Final = table("api_key", column("id"), column("name"))
_COUNTS: Final = ("num_requests", "prompt_tokens", "cached_tokens", "completion_tokens")
_USAGE_OF: Final = ("id", "name", "tenant_name", *_COUNTS)


class Dimension(StrEnum):
    """What usage can be told apart by."""

    TENANT = "tenant"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    CLASS = "class"


@dataclass(frozen=True, kw_only=True)
class Used:
    """Requests that were admitted, and the tokens they used; `cached_tokens` are some of the prompts'."""

    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def tokens(self) -> int:
        """Of prompts and answers together: what limits count."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, kw_only=True)
class UsageOf(Used):
    """Of one tenant, project, key, model or class. `tenant_name` is whose it is, where it is somebody's."""

    id: str
    name: str
    tenant_name: str | None


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The place of one in a report by what was used: behind all who used more."""

    tokens: int
    id: str


@dataclass(frozen=True, kw_only=True)
class UsageAt(Used):
    """Of the minute or day that begins at `at`."""

    at: datetime


async def total(connection: AsyncConnection, span: Span, *, tenant_id: TenantId | None) -> Used:
    """All that was used in a span. Without a tenant for operators only."""
    sums = _sums(_buckets(pieces(span), tenant_id))
    row = (await connection.execute(sums)).mappings().one()
    return Used(**{name: row[name] or 0 for name in _COUNTS})


async def by(
    connection: AsyncConnection,
    dimension: Dimension,
    span: Span,
    *,
    tenant_id: TenantId | None,
    limit: int,
    after: UsageOf | Rank | None = None,
) -> Sequence[UsageOf]:
    """Who used most comes first. Without a tenant for operators only."""
    buckets = _buckets(pieces(span), tenant_id)
    one = _column_of(buckets, dimension).label("id")
    owner = func.min(buckets.c.tenant_id).label("tenant_id")  # a project or key has but one
    used = _sums(buckets, one, owner).group_by(one).subquery()
    tokens = used.c.prompt_tokens + used.c.completion_tokens
    page = select(used, *_names(used, dimension)).order_by(tokens.desc(), used.c.id).limit(limit)
    if after is not None:
        as_much = (tokens == after.tokens) & (used.c.id > after.id)
        page = page.where(or_(tokens < after.tokens, as_much))
    rows = await connection.execute(page)
    return [UsageOf(**{name: row[name] for name in _USAGE_OF}) for row in rows.mappings()]


async def over_time(
    connection: AsyncConnection,
    unit: Unit,
    span: Span,
    *,
    tenant_id: TenantId | None,
    limit: int,
    after: UsageAt | None = None,
) -> Sequence[UsageAt]:
    """By minute or day (UTC), oldest first, without those in which nothing was used.

    Without a tenant for operators only.
    """
    buckets = _buckets(minutes_of(span) if unit is Unit.MINUTE else pieces(span), tenant_id)
    at = func.date_trunc(unit.value, buckets.c.bucket_start, "UTC").label("at")
    used = _sums(buckets, at).group_by(at).subquery()
    page = select(used).order_by(used.c.at).limit(limit)
    if after is not None:
        page = page.where(used.c.at > after.at)
    return [UsageAt(**row) for row in (await connection.execute(page)).mappings()]


def _buckets(parts: Sequence[Piece], tenant_id: TenantId | None) -> Subquery:
    return union_all(*(_buckets_of(part, tenant_id) for part in parts)).subquery("buckets")


def _buckets_of(part: Piece, tenant_id: TenantId | None) -> Select[Any]:
    rollup = usage_rollup_minute if part.unit is Unit.MINUTE else usage_rollup_day
    found = select(rollup).where(rollup.c.bucket_start >= part.since)
    if part.until is not None:
        found = found.where(rollup.c.bucket_start < part.until)
    return found if tenant_id is None else found.where(rollup.c.tenant_id == tenant_id)


def _sums(buckets: Subquery, *keys: ColumnElement[Any]) -> Select[Any]:
    counts = (cast(func.sum(buckets.c[name]), BigInteger).label(name) for name in _COUNTS)
    return select(*keys, *counts)


def _column_of(buckets: Subquery, dimension: Dimension) -> ColumnElement[Any]:
    match dimension:
        case Dimension.MODEL:
            return buckets.c.model
        case Dimension.CLASS:
            return buckets.c.request_class
        case Dimension.TENANT | Dimension.PROJECT | Dimension.KEY:
            return buckets.c[f"{dimension.value}_id"]


def _names(used: Subquery, dimension: Dimension) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """What something is called, and whose it is."""
    tenant_name = _name_in(tenant, used.c.tenant_id).label("tenant_name")
    match dimension:
        case Dimension.TENANT:
            return _name_in(tenant, used.c.id).label("name"), tenant_name
        case Dimension.PROJECT:
            return _name_in(project, used.c.id).label("name"), tenant_name
        case Dimension.KEY:
            return _name_in(_api_key, used.c.id).label("name"), tenant_name
        case Dimension.MODEL | Dimension.CLASS:
            return used.c.id.label("name"), null().label("tenant_name")


def _name_in(named: TableClause, id_: ColumnElement[Any]) -> ColumnElement[Any]:
    """Its id stands for what is no longer there."""
    name = select(named.c.name).where(named.c.id == id_).scalar_subquery()
    return func.coalesce(name, id_)
