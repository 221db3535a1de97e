"""Two reports side by side: each figure of both, and how many times the first the second is. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from deploy.bench.figures import Figures
from deploy.bench.report import Report, RunReport

PERCENTILES: Final = ("mean", "p50", "p95", "p99")
COMPARED: Final = ("ttft", "itl", "tpot", "e2e", "jitter")


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """One figure of both. `is_better_high` says which way is better; None where it says nothing."""

    name: str
    first: float | None
    second: float | None
    is_better_high: bool

    @property
    def ratio(self) -> float | None:
        """Second over first; None where one is missing or the first is zero."""
        return None if self.second is None or not self.first else self.second / self.first


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One load on both."""

    name: str
    figures: list[ComparedFigure]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`only_first` and `only_second` name runs that the other report has not; `differences` are settings."""

    runs: list[ComparedRun]
    only_first: list[str]
    only_second: list[str]
    differences: list[str]


def compared(first: Report, second: Report) -> Comparison:
    """Runs are matched by name."""
    of_first, of_second = _by_name(first), _by_name(second)
    return Comparison(
        runs=[
            ComparedRun(name=name, figures=list(_figures(of_first[name].figures, of_second[name].figures)))
            for name in of_first
            if name in of_second
        ],
        only_first=[name for name in of_first if name not in of_second],
        only_second=[name for name in of_second if name not in of_first],
        differences=list(_differences(first, second, of_first, of_second)),
    )


def _figures(first: Figures, second: Figures) -> Iterator[ComparedFigure]:
    for name, field in (
        ("output tokens/s", "output_tokens_per_second"),
        ("total tokens/s", "total_tokens_per_second"),
        ("requests/s", "requests_per_second"),
        ("goodput/s", "goodput_per_second"),
    ):
        yield ComparedFigure(
            name=name, first=getattr(first, field), second=getattr(second, field), is_better_high=True
        )
    for measure in COMPARED:
        for percentile in PERCENTILES:
            values = [
                getattr(figures.latencies_ms.get(measure), percentile, None) for figures in (first, second)
            ]
            if values != [None, None]:
                yield ComparedFigure(
                    name=f"{measure} {percentile} ms", first=values[0], second=values[1], is_better_high=False
                )
    yield ComparedFigure(
        name="failed requests",
        first=float(sum(first.errors.values())),
        second=float(sum(second.errors.values())),
        is_better_high=False,
    )


def _differences(
    first: Report,
    second: Report,
    of_first: Mapping[str, RunReport],
    of_second: Mapping[str, RunReport],
) -> Iterator[str]:
    """What makes a comparison lame."""
    if first.seed != second.seed:
        yield f"seed {first.seed} and {second.seed}"
    for name in sorted(first.settings.keys() | second.settings.keys()):
        ours, theirs = first.settings.get(name, "not given"), second.settings.get(name, "not given")
        if ours != theirs:
            yield f"{name} {ours} and {theirs}"
    if first.slo_ms != second.slo_ms:
        yield "another SLO"
    for name in of_first.keys() & of_second.keys():
        if of_first[name].load != of_second[name].load:
            yield f"{name} is another load"


def _by_name(report: Report) -> dict[str, RunReport]:
    return {run.name: run for run in report.runs}
