"""Turns figures into what a person reads: numbers, durations, moments, names. Pure; knows no HTML."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, assert_never

THIN_SPACE: Final = "\u2009"
NO_VALUE: Final = "–"


class Unit(StrEnum):
    """What a service level is measured in."""

    MILLISECONDS = "ms"
    SHARE = "share"
    PLAIN = "plain"


@dataclass(frozen=True, kw_only=True)
class SloName:
    """How a key of `[slo]` is called on a page."""

    title: str
    measure: str
    unit: Unit


_SLO_NAMES: Final = {
    "ttft_p95_ms": SloName(title="Time to first token", measure="p95", unit=Unit.MILLISECONDS),
    "itl_p95_ms": SloName(title="Time between tokens", measure="p95", unit=Unit.MILLISECONDS),
    "queue_wait_p95_ms": SloName(title="Wait in queue", measure="p95", unit=Unit.MILLISECONDS),
    "kv_cache_utilization_max": SloName(title="KV cache in use", measure="highest", unit=Unit.SHARE),
    "admission_reject_rate_max": SloName(title="Requests refused", measure="share", unit=Unit.SHARE),
}


def slo_name(key: str) -> SloName:
    """The key's name for people; an unknown key stands for itself, its unit read from its ending."""
    known = _SLO_NAMES.get(key)
    if known is not None:
        return known
    words = key.removesuffix("_ms").removesuffix("_max").replace("_p95", "")
    unit = Unit.MILLISECONDS if key.endswith("_ms") else Unit.PLAIN
    return SloName(
        title=words.replace("_", " ").capitalize(), measure="p95" if "_p95" in key else "", unit=unit
    )


def measured(value: float | None, unit: Unit) -> str:
    """A measured value with its unit; a dash when there was nothing to measure."""
    if value is None:
        return NO_VALUE
    match unit:
        case Unit.MILLISECONDS:
            return milliseconds(value)
        case Unit.SHARE:
            return percent(value)
        case Unit.PLAIN:
            return f"{value:,.2f}".rstrip("0").rstrip(".")
        case _:
            assert_never(unit)


def milliseconds(value: float) -> str:
    """Three digits at most: 8.4 ms, 128 ms, 1.52 s."""
    if value < 10:
        return f"{value:.1f}{THIN_SPACE}ms"
    if value < 1000:
        return f"{value:.0f}{THIN_SPACE}ms"
    if value < 100_000:
        return f"{value / 1000:.2f}{THIN_SPACE}s" if value < 10_000 else f"{value / 1000:.1f}{THIN_SPACE}s"
    return f"{value / 1000:.0f}{THIN_SPACE}s"


def percent(share: float) -> str:
    """A share of one as per cent, with one decimal where it says something."""
    value = share * 100
    if value == 0 or value >= 99.95:
        return f"{value:.0f}{THIN_SPACE}%"
    return f"{value:.1f}{THIN_SPACE}%"


def count(value: int) -> str:
    """A whole number with separated thousands."""
    return f"{value:,}"


def rate(value: float) -> str:
    """Something per second: one decimal below a hundred."""
    return f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"


def num_bytes(value: int) -> str:
    """A size in the unit that leaves it one to three digits: 512 B, 1.4 kB, 200 MB."""
    size, units = float(value), iter(("B", "kB", "MB", "GB"))
    unit = next(units)
    while size >= 999.5 and (larger := next(units, None)) is not None:
        size, unit = size / 1000, larger
    return f"{size:.1f}{THIN_SPACE}{unit}" if size < 9.95 and unit != "B" else f"{size:.0f}{THIN_SPACE}{unit}"


def limit(value: int | None) -> str:
    """A limit; None is no limit."""
    return "Unlimited" if value is None else count(value)


def duration(seconds: float) -> str:
    """The two largest units of a span: 42 s, 12 min, 3 h 5 min, 2 d 4 h."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{int(seconds)}{THIN_SPACE}s"
    if minutes < 60:
        return f"{minutes}{THIN_SPACE}min"
    if minutes < 24 * 60:
        return f"{minutes // 60}{THIN_SPACE}h {minutes % 60}{THIN_SPACE}min"
    return f"{minutes // 1440}{THIN_SPACE}d {minutes % 1440 // 60}{THIN_SPACE}h"


def day(moment: datetime) -> str:
    """The date of a moment in UTC: 3 Mar 2026."""
    utc = moment.astimezone(UTC)
    return f"{utc.day} {utc:%b %Y}"


def minute(moment: datetime) -> str:
    """Date and time of a moment in UTC: 3 Mar 2026, 14:05 UTC."""
    return f"{day(moment)}, {moment.astimezone(UTC):%H:%M} UTC"


def since(moment: datetime | None, *, now: datetime) -> str:
    """How long ago something was; `Never` when it was not."""
    if moment is None:
        return "Never"
    seconds = (now - moment).total_seconds()
    if seconds < 60:
        return "Just now"
    if seconds < 7 * 86_400:
        return f"{duration(seconds)} ago"
    return day(moment)
