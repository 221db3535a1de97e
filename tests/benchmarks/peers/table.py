"""The one table: a column for each system, absolute figures in rows, and beneath each its targets. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from tests.benchmarks.peers.targets import (
    MEASURES,
    Measure,
    RunFigures,
    Target,
    Verdict,
    median_of,
    verdict,
)

NOT_SHOWN = "not shown"


def rows(
    runs: Mapping[str, Sequence[RunFigures]], names: Sequence[str], targets: Sequence[Target]
) -> Iterator[list[str]]:
    """All of them; `names` are the columns, in order."""
    for measure in MEASURES:
        cells = [_cell(measure, runs.get(name, ())) for name in names]
        if any(cells):
            yield [measure.name, *cells]
        for target in targets:
            if target.measure is measure:
                yield _target_row(verdict(target, runs), names)


def shown(seen: Verdict) -> str:
    """`0.44 × pass`."""
    if seen.ratio is None:
        return NOT_SHOWN
    return f"{seen.ratio:.2f} × {'pass' if seen.is_met else 'MISS'}"


def described(seen: Verdict) -> str:
    """`ours-int8 ≤ 0.5 × llama.cpp`."""
    return f"{seen.target.ours} {seen.target.bound} {seen.target.peer}"


def _cell(measure: Measure, runs: Sequence[RunFigures]) -> str:
    value = median_of(measure, runs)
    return "" if value is None else f"{value:,.{measure.digits}f}"


def _target_row(seen: Verdict, names: Sequence[str]) -> list[str]:
    return [f"  {described(seen)}", *(shown(seen) if name == seen.target.peer else "" for name in names)]
