"""Runs all scenarios, or those that are named, and prints what was promised beside what was measured.

python -m tests.benchmarks.gateway [exact chaos latency saturation streams sql litellm] [--runs 3] [--smoke]

The exit status is 1 when a target was missed.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from tests.benchmarks.gateway import chaos, exact, latency, litellm, saturation, sql, streams
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.speed import NothingComplete
from tests.benchmarks.scheduler.report import Figure, print_surroundings

DEFAULT_RUNS: Final = 3
SCENARIOS: Final[dict[str, tuple[str, Callable[[Options], list[Figure]]]]] = {
    "exact": ("Limits are exact over four workers", exact.run),
    "chaos": ("Clients that vanish and workers that are killed", chaos.run),
    "latency": ("What the gateway adds to an answer", latency.run),
    "saturation": ("What one worker on one core serves", saturation.run),
    "streams": ("Many streams at once", streams.run),
    "sql": ("Statements in the database", sql.run),
    "litellm": ("LiteLLM's proxy beside ours", litellm.run),
}


def main() -> int:
    options, chosen = _options()
    print_surroundings()
    if options.is_smoke:
        print("SMOKE: tiny loads that show that everything works; compare nothing\n")
    judged = [figure for name in chosen for figure in _run(name, options) if figure.passed is not None]
    missed = [figure for figure in judged if not figure.passed]
    print(f"{len(judged) - len(missed)} of {len(judged)} targets met")
    for figure in missed:
        print(f"  MISS  {figure.name.strip()}: {figure.value}, target {figure.target}")
    return 1 if missed else 0


def _options() -> tuple[Options, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", help=", ".join(SCENARIOS))
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS, help="of each figure of speed (default: 3)")
    parser.add_argument("--smoke", action="store_true", help="one run of tiny loads")
    chosen = parser.parse_args()
    names = chosen.scenario or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    return Options(is_smoke=chosen.smoke, num_runs=1 if chosen.smoke else chosen.runs), names


def _run(name: str, options: Options) -> list[Figure]:
    title, run = SCENARIOS[name]
    print(f"=== {name}: {title}\n", flush=True)
    begun = time.perf_counter()
    try:
        figures = run(options)
    except (NothingComplete, RuntimeError, AssertionError) as error:  # others may still show what they can
        print(f"FAILED  {error}\n")
        figures = [Figure(name=name, value="it failed", target="figures", passed=False)]
    print(f"({name} took {time.perf_counter() - begun:.0f} s)\n", flush=True)
    return figures


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way, nothing outlives this process
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
