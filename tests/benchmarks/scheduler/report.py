"""Tables of figures against their targets, in plain text. Knows nothing of what is measured."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LONGEST_VALUE = 40  # characters; what is longer is a sentence
_COLUMN_GAP = "  "
_SPARKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value. `passed` is None where there is nothing to miss: a figure to compare with."""

    name: str
    value: str
    target: str = ""
    passed: bool | None = None


def at_most(name: str, value: float, limit: float, unit: str = "", *, digits: int = 2) -> Figure:
    """A figure that may not exceed `limit`."""
    return Figure(
        name=name, value=_number(value, unit, digits), target=f"≤ {_number(limit, unit, digits)}",
        passed=value <= limit,
    )  # fmt: skip


def at_least(name: str, value: float, limit: float, unit: str = "", *, digits: int = 2) -> Figure:
    """A figure that may not fall below `limit`."""
    return Figure(
        name=name, value=_number(value, unit, digits), target=f"≥ {_number(limit, unit, digits)}",
        passed=value >= limit,
    )  # fmt: skip


def plain(name: str, value: float, unit: str = "", *, digits: int = 2) -> Figure:
    """A figure without a target."""
    return Figure(name=name, value=_number(value, unit, digits))


def print_figures(figures: Sequence[Figure]) -> None:
    """A table: figure, value, target, verdict."""
    rows = [(figure.name, figure.value, figure.target, _verdict(figure)) for figure in figures]
    print_table(("figure", "value", "target", ""), rows)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need; the first and sentences to the left, others to the right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    aligned = [
        [cell.ljust(width) if place == 0 or width > LONGEST_VALUE else cell.rjust(width) for cell in column]
        for place, (column, width) in enumerate(zip(columns, widths, strict=True))
    ]
    lines = [_COLUMN_GAP.join(cells).rstrip() for cells in zip(*aligned, strict=True)]
    print(lines[0])
    print(_COLUMN_GAP.join("-" * width for width in widths))
    print("\n".join(lines[1:]))
    print()


def sparkline(values: Sequence[float], highest: float) -> str:
    """A character per value, from nothing at 0 to a full block at `highest` or above."""
    steps = len(_SPARKS) - 1
    return "".join(_SPARKS[round(steps * min(1.0, max(0.0, value / highest)))] for value in values)


def progress(text: str) -> None:
    """Says on standard error what is going on, since some of it takes minutes."""
    print(f"    ... {text}", file=sys.stderr, flush=True)


def print_surroundings() -> None:
    """What the figures depend on: the code, the machine, the interpreter."""
    commit = _output(["git", "log", "-1", "--format=%h %cs"]) or "not a git checkout"
    changed = " with uncommitted changes" if _output(["git", "status", "--porcelain"]) else ""
    print(f"commit   {commit}{changed}")
    print(f"machine  {_processor()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}")
    print(f"python   {platform.python_version()} ({platform.python_implementation()})\n")


def median_of(runs: int, measure: Callable[[], float]) -> float:
    """The median of several measurements."""
    values = sorted(measure() for _ in range(runs))
    return values[len(values) // 2]


def _number(value: float, unit: str, digits: int) -> str:
    return f"{value:,.{digits}f}{' ' + unit if unit else ''}"


def _verdict(figure: Figure) -> str:
    if figure.passed is None:
        return ""
    return "pass" if figure.passed else "MISS"


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
