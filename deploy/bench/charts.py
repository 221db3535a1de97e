"""Charts as geometry: points, axes and ticks in pixels, for a template to draw as SVG. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Final, Literal

WIDTH, HEIGHT = 460, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 40
NUM_TICKS: Final = 5
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points in order of x. `tone` is the name of a colour that the page defines."""

    name: str
    points: Sequence[Point]
    tone: str
    style: Literal["line", "dots"] = "line"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What is to be seen; both axes begin at zero."""

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A mark on an axis, at a pixel."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Stroke:
    """One series as the `d` of an SVG path."""

    name: str
    tone: str
    style: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A chart in pixels."""

    chart: Chart
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    strokes: Sequence[Stroke]


def drawn(chart: Chart) -> Drawing:
    """The geometry of a chart with at least one point."""
    points = [point for series in chart.series for point in series.points]
    x_values = ticks(max(x for x, _ in points))
    y_values = ticks(max(y for _, y in points))
    x_most, y_most = x_values[-1], y_values[-1]

    def x_pixel(x: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * x / x_most, 1)

    def y_pixel(y: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / y_most, 1)

    def stroke(series: Series) -> Stroke:
        pixels = [(x_pixel(x), y_pixel(y)) for x, y in series.points]
        path = "".join(_line(pixels) if series.style == "line" else _dots(pixels))
        return Stroke(name=series.name, tone=series.tone, style=series.style, path=path)

    return Drawing(
        chart=chart,
        x_ticks=[Tick(at=x_pixel(value), label=_label(value)) for value in x_values],
        y_ticks=[Tick(at=y_pixel(value), label=_label(value)) for value in y_values],
        strokes=[stroke(series) for series in chart.series if series.points],
    )


def ticks(most: float) -> list[float]:
    """Round numbers from 0 to the first that is at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    magnitude = 10.0 ** floor(log10(most / NUM_TICKS))
    step = next(
        factor * magnitude
        for factor in (1, 2, 2.5, 5, 10)
        if factor * magnitude * NUM_TICKS >= most * (1 - 1e-9)
    )
    num_steps = next(count for count in range(1, NUM_TICKS + 2) if count * step >= most * (1 - 1e-9))
    return [count * step for count in range(num_steps + 1)]


def _line(pixels: Sequence[Point]) -> Iterator[str]:
    for number, (x, y) in enumerate(pixels):
        yield f"{'L' if number else 'M'}{x:g} {y:g}"


def _dots(pixels: Sequence[Point]) -> Iterator[str]:
    """Lines of no length: a round cap makes each a dot."""
    for x, y in pixels:
        yield f"M{x:g} {y:g}h0"


def _label(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 10_000 else f"{value:g}"
