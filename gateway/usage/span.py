"""A stretch of time, and which sums it is made of: whole days, and minutes at its ragged ends. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

DAY: Final = timedelta(days=1)


class Unit(StrEnum):
    """How long a bucket of the ledger's sums is."""

    MINUTE = "minute"
    DAY = "day"


@dataclass(frozen=True)
class Span:
    """From the minute of `since` on, until before the minute of `until`; None: up to now."""

    since: datetime
    until: datetime | None = None


@dataclass(frozen=True)
class Piece:
    """The buckets of one unit that begin in a part of a span."""

    unit: Unit
    since: datetime
    until: datetime | None


def pieces(span: Span) -> list[Piece]:
    """Every moment once, by days where whole ones fit: minutes are many, and not kept for as long.

    since      midnight                midnight      until
      |  minutes  |   days ...   days    |   minutes   |
    """
    since, until = _minute(span.since), None if span.until is None else _minute(span.until)
    first = since if since == _midnight(since) else _midnight(since) + DAY
    if until is None:
        return [*_minutes(since, first), Piece(Unit.DAY, first, None)]
    last = _midnight(until)
    if last <= first:
        return [*_minutes(since, min(first, until)), *_minutes(first, until)] or minutes_of(span)
    return [*_minutes(since, first), Piece(Unit.DAY, first, last), *_minutes(last, until)]


def minutes_of(span: Span) -> list[Piece]:
    """All of a span by the minute."""
    return [Piece(Unit.MINUTE, _minute(span.since), None if span.until is None else _minute(span.until))]


def _minutes(since: datetime, until: datetime) -> list[Piece]:
    return [Piece(Unit.MINUTE, since, until)] if since < until else []


def _minute(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0)
