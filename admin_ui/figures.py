"""What the engines' figures mean to an operator: states, sums, and which service level is in breach. Pure.

Sums are over the engines that answer. A percentile is never averaged: of several engines the worst counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from engine.protocol import EngineDescription, EngineStatus, SloRow

SILENT_AFTER_SECONDS: Final = 5.0  # an engine speaks every second; the wire calls it dead after as long


class EngineState(StrEnum):
    """What an operator may expect of an engine now."""

    HEALTHY = "healthy"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"
    UNREACHABLE = "unreachable"


class Progress(StrEnum):
    """Whether the step counter moves, and whether it should."""

    MOVING = "moving"
    IDLE = "idle"
    STANDING = "standing"


class SloState(StrEnum):
    """A service level against its target."""

    OK = "ok"
    BREACH = "breach"
    NO_DATA = "no data"


@dataclass(frozen=True, kw_only=True)
class EngineView:
    """One engine as last heard. `silent_seconds` is None when it was never heard at all."""

    address: str
    state: EngineState
    progress: Progress
    description: EngineDescription | None
    status: EngineStatus | None
    silent_seconds: float | None

    @property
    def is_away(self) -> bool:
        """Whether its figures are old news."""
        return self.state is EngineState.UNREACHABLE


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Load of all engines that answer."""

    running_interactive: int
    running_offline: int
    waiting_interactive: int
    waiting_offline: int
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks_free: int

    @property
    def running(self) -> int:
        """Running requests of both classes."""
        return self.running_interactive + self.running_offline

    @property
    def waiting(self) -> int:
        """Waiting requests of both classes."""
        return self.waiting_interactive + self.waiting_offline

    @property
    def kv_used_share(self) -> float:
        """Used blocks as a share of all; 0 when there are none."""
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0


@dataclass(frozen=True, kw_only=True)
class SloLine:
    """One key of `[slo]` over all engines: each value is the worst of them."""

    key: str
    target: float
    now: float | None
    five_minutes: float | None
    minutes_in_breach: int

    @property
    def state(self) -> SloState:
        """In breach when the newest window or the five minutes are above the target."""
        values = [value for value in (self.now, self.five_minutes) if value is not None]
        if not values:
            return SloState.NO_DATA
        return SloState.BREACH if max(values) > self.target else SloState.OK


def answering(views: Iterable[EngineView]) -> list[EngineStatus]:
    """The statuses that are fresh enough to count."""
    return [view.status for view in views if view.status is not None and not view.is_away]


def engine_state(
    status: EngineStatus | None, *, is_connected: bool, silent_seconds: float | None
) -> EngineState:
    """The state that an engine's newest status and its silence add up to."""
    if not is_connected or status is None or silent_seconds is None or silent_seconds > SILENT_AFTER_SECONDS:
        return EngineState.UNREACHABLE
    if not status.healthy:
        return EngineState.UNHEALTHY
    return EngineState.DRAINING if status.draining else EngineState.HEALTHY


def progress(status: EngineStatus | None, *, has_moved_lately: bool) -> Progress:
    """Without work a resting counter is idle; with work it stands, which is trouble."""
    if has_moved_lately:
        return Progress.MOVING
    if status is None:
        return Progress.IDLE
    has_work = any(counts.running or counts.waiting for counts in (status.interactive, status.offline))
    return Progress.STANDING if has_work else Progress.IDLE


def totals(statuses: Iterable[EngineStatus]) -> Totals:
    """Sums over engines; all zero for none."""
    heard = list(statuses)
    return Totals(
        running_interactive=sum(status.interactive.running for status in heard),
        running_offline=sum(status.offline.running for status in heard),
        waiting_interactive=sum(status.interactive.waiting for status in heard),
        waiting_offline=sum(status.offline.waiting for status in heard),
        prompt_tokens_per_second=sum(status.prompt_tokens_per_second for status in heard),
        generated_tokens_per_second=sum(status.generated_tokens_per_second for status in heard),
        kv_blocks_total=sum(status.kv_blocks_total for status in heard),
        kv_blocks_used=sum(status.kv_blocks_used for status in heard),
        kv_blocks_cached=sum(status.kv_blocks_cached for status in heard),
        kv_blocks_free=sum(status.kv_blocks_free for status in heard),
    )


def slo_lines(statuses: Iterable[EngineStatus]) -> list[SloLine]:
    """One line per key, in the order in which the engines name them."""
    rows_by_key: dict[str, list[SloRow]] = {}
    for status in statuses:
        for row in status.slo:
            rows_by_key.setdefault(row.name, []).append(row)
    return [_worst(key, rows) for key, rows in rows_by_key.items()]


def _worst(key: str, rows: Sequence[SloRow]) -> SloLine:
    return SloLine(
        key=key,
        target=min(row.target for row in rows),
        now=_highest(row.now for row in rows),
        five_minutes=_highest(row.five_minutes for row in rows),
        minutes_in_breach=max(row.minutes_in_breach for row in rows),
    )


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
