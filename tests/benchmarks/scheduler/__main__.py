"""Runs all scenarios, or those that are named, and prints what was claimed beside what was measured.

python -m tests.benchmarks.scheduler [host_cost batching flood offline prefix spike prefix_real]

The exit status is 1 when a target was missed.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

from tests.benchmarks.scheduler import batching, flood, host_cost, offline, prefix, prefix_real, spike
from tests.benchmarks.scheduler.report import Figure, print_surroundings

SCENARIOS: Final[dict[str, tuple[str, Callable[[], list[Figure]]]]] = {
    "host_cost": ("The scheduler's own cost (wall clock)", host_cost.run),
    "flood": ("One tenant floods (simulated)", flood.run),
    "offline": ("Offline work beside people (simulated, and the real model)", offline.run),
    "prefix": ("Prefixes of a public trace (simulated)", prefix.run),
    "spike": ("A spike to three times capacity (simulated)", spike.run),
    "batching": ("Fixed batching and ours (real model, wall clock)", batching.run),
    "prefix_real": ("A repeated prompt (real model, wall clock)", prefix_real.run),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", help=", ".join(SCENARIOS))
    chosen = parser.parse_args().scenario or list(SCENARIOS)
    unknown = [name for name in chosen if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    print_surroundings()
    judged = [figure for name in chosen for figure in _run(name) if figure.passed is not None]
    missed = [figure for figure in judged if not figure.passed]
    print(f"{len(judged) - len(missed)} of {len(judged)} targets met")
    for figure in missed:
        print(f"  MISS  {figure.name}: {figure.value}, target {figure.target}")
    return 1 if missed else 0


def _run(name: str) -> list[Figure]:
    title, run = SCENARIOS[name]
    print(f"=== {name}: {title}\n")
    begun = time.perf_counter()
    figures = run()
    print(f"({name} took {time.perf_counter() - begun:.0f} s)\n", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
