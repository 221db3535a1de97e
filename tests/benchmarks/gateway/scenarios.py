"""Runs scenarios by name, and prints what was promised beside what was measured."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.speed import NothingComplete
from tests.benchmarks.scheduler.report import Figure, print_surroundings

DEFAULT_RUNS: Final = 3

Scenarios = Mapping[str, tuple[str, Callable[[Options], list[Figure]]]]


def run_and_exit(scenarios: Scenarios, *, description: str | None) -> None:
    """Runs those that the command line names, or all. The exit status is 1 when a target was missed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way, nothing outlives this process
    try:
        sys.exit(_main(scenarios, description))
    except KeyboardInterrupt:
        sys.exit(130)


def _main(scenarios: Scenarios, description: str | None) -> int:
    options, chosen = _options(scenarios, description)
    print_surroundings()
    if options.is_smoke:
        print("SMOKE: tiny loads that show that everything works; compare nothing\n")
    judged = [
        figure for name in chosen for figure in _run(name, scenarios, options) if figure.passed is not None
    ]
    missed = [figure for figure in judged if not figure.passed]
    print(f"{len(judged) - len(missed)} of {len(judged)} targets met")
    for figure in missed:
        print(f"  MISS  {figure.name.strip()}: {figure.value}, target {figure.target}")
    return 1 if missed else 0


def _options(scenarios: Scenarios, description: str | None) -> tuple[Options, list[str]]:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", help=", ".join(scenarios))
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS, help="of each figure of speed (default: 3)")
    parser.add_argument("--smoke", action="store_true", help="one run of tiny loads")
    chosen = parser.parse_args()
    names = chosen.scenario or list(scenarios)
    unknown = [name for name in names if name not in scenarios]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(scenarios)}")
    return Options(is_smoke=chosen.smoke, num_runs=1 if chosen.smoke else chosen.runs), names


def _run(name: str, scenarios: Scenarios, options: Options) -> list[Figure]:
    title, run = scenarios[name]
    print(f"=== {name}: {title}\n", flush=True)
    begun = time.perf_counter()
    try:
        figures = run(options)
    except (NothingComplete, RuntimeError, AssertionError) as error:  # others may still show what they can
        print(f"FAILED  {error}\n")
        figures = [Figure(name=name, value="it failed", target="figures", passed=False)]
    print(f"({name} took {time.perf_counter() - begun:.0f} s)\n", flush=True)
    return figures
