"""Geometry of the small charts: where points and bars lie. Pure; colours and sizes belong to the stylesheet.

A chart is an SVG with a fixed view box that is stretched to its place, so all coordinates are shares of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 300.0
HEIGHT: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Sparkline:
    """SVG path data for a line and for the area under it; both empty when there is nothing to draw."""

    line: str
    area: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One part of a stacked bar: where it starts and how wide it is, in per cent of the whole."""

    start: float
    width: float


def sparkline(
    points: Sequence[tuple[float, float]], *, now: float, window_seconds: float, ceiling: float
) -> Sparkline:
    """Draws (moment, value) pairs of the last `window_seconds`; `ceiling` is the value at the top edge."""
    if len(points) < 2:
        return Sparkline(line="", area="")
    top = max(ceiling, 1e-9)
    placed = [
        (
            WIDTH * (1 - (now - moment) / window_seconds),
            HEIGHT - 1 - (HEIGHT - 4) * min(max(value / top, 0.0), 1.0),
        )
        for moment, value in points
    ]
    line = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    area = f"{line}L{placed[-1][0]:.1f},{HEIGHT:.0f}L{placed[0][0]:.1f},{HEIGHT:.0f}Z"
    return Sparkline(line=line, area=area)


def stacked(parts: Sequence[float]) -> list[Bar]:
    """Parts laid end to end as shares of their sum; all empty when the sum is nothing."""
    total = sum(parts)
    bars: list[Bar] = []
    start = 0.0
    for part in parts:
        width = 100 * part / total if total > 0 else 0.0
        bars.append(Bar(start=round(start, 3), width=round(width, 3)))
        start += width
    return bars
