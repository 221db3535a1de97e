"""Mixed load for an hour: does memory stay flat, and does every gauge come back to rest?

python -m tests.benchmarks.gateway.soak [--minutes 60] [--smoke]

Three tenants, one with limits that bind; streams and whole answers; interactive and offline; three in ten
clients leave. Two workers and the real engine with the scripted runner. Memory is looked at every ten
seconds; the first tenth of the time warms up. The exit status is 1 when something grew or did not come back.
"""

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from random import Random
from typing import Final

from tests.benchmarks.gateway.cores import shared
from tests.benchmarks.gateway.customers import Limits
from tests.benchmarks.gateway.exchange import Leave, Leaving, Seen, Shot
from tests.benchmarks.gateway.gauges import read_gauges
from tests.benchmarks.gateway.http_request import chat
from tests.benchmarks.gateway.invariants import growth
from tests.benchmarks.gateway.load import Generator, OpenLoad, load_process
from tests.benchmarks.gateway.processor_time import resident_mib
from tests.benchmarks.gateway.speed import what_failed
from tests.benchmarks.gateway.stack import ScriptedKind, Stack, running_stack
from tests.benchmarks.scheduler.report import (
    Figure,
    at_most,
    print_figures,
    print_surroundings,
    print_table,
    progress,
    sparkline,
)
from tests.builders.sluice_process import descendants

MINUTES: Final = 60.0
SMOKE_MINUTES: Final = 0.5
NUM_WORKERS: Final = 2
STEP_MS: Final = 20.0
RATE: Final = 25.0
LOAD_SECONDS: Final = 60.0
LOOK_EVERY_SECONDS: Final = 10.0
WARM_SHARE: Final = 0.1
ABORTED_SHARE: Final = 0.3
STREAMED_SHARE: Final = 0.6
OFFLINE_SHARE: Final = 0.3
SHORT, LONG = 4, 64  # tokens of an answer
LEAVES_WITHIN_SECONDS: Final = 1.0
DECK: Final = 1_000
SEED: Final = 20_261_130
MOST_GROWTH: Final = 5.0  # in percent
REST_SECONDS: Final = 15.0
SPARKS: Final = 60
TENANTS: Final[Mapping[str, Limits]] = {
    "free": Limits(),
    "roomy": Limits(concurrent_requests=200, tokens_per_minute=1_000_000),
    "tight": Limits(concurrent_requests=4, tokens_per_minute=8_000),
}
# What a cache keeps of what it has seen is no drift (free blocks are those that it has not); nor is an age.
KEPT: Final = ('state="cached"', 'state="free"', "uptime")


@dataclass(frozen=True)
class Memory:
    """MiB of each kind of process, look by look."""

    by_kind: dict[str, list[float]] = field(default_factory=dict)

    def look(self, stack: Stack) -> None:
        """One more look."""
        pids = {
            "gateway workers": stack.gateways[0].worker_pids(),
            "engine": [stack.engine.pid],
            "Postgres": list(descendants(stack.store.pid)),
        }
        for kind, members in pids.items():
            self.by_kind.setdefault(kind, []).append(resident_mib(members))


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A gauge before the load, and once all was over."""

    name: str
    before: float
    after: float

    @property
    def has_drifted(self) -> bool:
        """It did not come back, and ought to have."""
        return self.has_changed and not any(part in self.name for part in KEPT)

    @property
    def has_changed(self) -> bool:
        """Not a number is what a gauge says that has nothing to say: it says the same then."""
        both = (self.before, self.after)
        return self.before != self.after and not all(map(isnan, both))


def main() -> int:
    options = _options()
    minutes = SMOKE_MINUTES if options.smoke else options.minutes
    print_surroundings()
    layout, memory = shared(), Memory()
    with (
        running_stack(ScriptedKind(step_ms=STEP_MS), layout, num_workers=NUM_WORKERS) as stack,
        load_process(layout.others) as generator,
    ):
        shots = _deck(stack, Random(SEED))
        _load(stack, generator, shots, seconds=2.0)  # so that every gauge is there
        before = _gauges_at_rest(stack)
        seen = _soak(stack, generator, shots, memory, minutes=minutes, every=1.0 if options.smoke else None)
        drifts = _drifts(stack, before)
    print(f"{minutes:g} minutes, {RATE:.0f} requests/s over {NUM_WORKERS} workers: {_described(seen)}\n")
    return _report(memory, drifts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of load (default: 60)")
    parser.add_argument("--smoke", action="store_true", help="half a minute, a look every second")
    return parser.parse_args()


# --- the load --------------------------------------------------------------------------------------------


def _deck(stack: Stack, random: Random) -> list[Shot]:
    """Requests of all kinds, shuffled."""
    keys = [stack.customer(name, limits) for name, limits in TENANTS.items()]
    return [_shot(random.choice(keys), random) for _ in range(DECK)]


def _shot(key: str, random: Random) -> Shot:
    num_tokens = random.randint(SHORT, LONG)
    is_stream = random.random() < STREAMED_SHARE
    request = chat(key, num_tokens=num_tokens, stream=is_stream, offline=random.random() < OFFLINE_SHARE)
    if random.random() >= ABORTED_SHARE:
        return Shot(request=request)
    how = random.choice((Leaving.RESET, Leaving.CLOSE))
    if is_stream and random.random() < 0.5:
        return Shot(request=request, leave=Leave(how=how, with_tokens=random.randint(1, num_tokens)))
    return Shot(request=request, leave=Leave(how=how, after_seconds=random.uniform(0, LEAVES_WITHIN_SECONDS)))


def _load(stack: Stack, generator: Generator, shots: Sequence[Shot], *, seconds: float) -> list[Seen]:
    load = OpenLoad(address=stack.address(), shots=shots, rate=RATE, seconds=seconds)
    return generator.carry_out(load)


@dataclass
class Tally:
    """How requests ended."""

    num_complete: int = 0
    num_left: int = 0
    failed: list[Seen] = field(default_factory=list)

    def add(self, seen: Sequence[Seen]) -> None:
        """Counts some; keeps only those that failed."""
        self.num_complete += sum(one.is_complete for one in seen)
        self.num_left += sum(one.has_left for one in seen)
        self.failed += [one for one in seen if one.error is not None]


def _soak(
    stack: Stack,
    generator: Generator,
    shots: Sequence[Shot],
    memory: Memory,
    *,
    minutes: float,
    every: float | None,
) -> Tally:
    """Load after load, and a look now and then."""
    tally, ends_at = Tally(), time.monotonic() + 60 * minutes
    while (seconds := min(LOAD_SECONDS, ends_at - time.monotonic())) > 0:
        load = generator.begin(
            OpenLoad(address=stack.address(), shots=shots, rate=RATE, seconds=seconds, seed=tally.num_left)
        )
        while not load.done():
            memory.look(stack)
            time.sleep(every or LOOK_EVERY_SECONDS)
        tally.add(load.result())
        progress(f"soak: {max(0.0, ends_at - time.monotonic()) / 60:.0f} minutes left")
    return tally


def _described(tally: Tally) -> str:
    return (
        f"{tally.num_complete:,} whole answers, {tally.num_left:,} left by their clients; "
        f"refused or failed: {what_failed(tally.failed) or 'none'}"
    )


# --- gauges ----------------------------------------------------------------------------------------------


def _gauges(stack: Stack) -> dict[str, float]:
    engine = f"http://127.0.0.1:{stack.engine.said['wire']}/metrics"
    return read_gauges(stack.gateways[0].metrics_url) | read_gauges(engine)


def _gauges_at_rest(stack: Stack) -> dict[str, float]:
    """Once nothing moves."""
    time.sleep(REST_SECONDS)
    return _gauges(stack)


def _drifts(stack: Stack, before: Mapping[str, float]) -> list[Drift]:
    after = _gauges_at_rest(stack)
    names = sorted(before.keys() | after.keys())
    return [Drift(name=name, before=before.get(name, 0.0), after=after.get(name, 0.0)) for name in names]


# --- the report ------------------------------------------------------------------------------------------


def _report(memory: Memory, drifts: Sequence[Drift]) -> int:
    """Prints all; returns the exit status."""
    moved = [each for each in drifts if each.has_changed]
    print_table(
        ("gauge that changed", "at rest before", "at rest after", ""),
        [
            (each.name, f"{each.before:g}", f"{each.after:g}", "MISS" if each.has_drifted else "kept")
            for each in moved
        ]
        or [(f"none of {len(drifts)}", "", "", "")],
    )
    for kind, values in memory.by_kind.items():
        print(f"{kind:<16} {min(values):6.0f} to {max(values):4.0f} MiB  {_curve(values)}")
    print()
    figures = [
        *(_growth_figure(kind, values) for kind, values in memory.by_kind.items()),
        at_most(
            f"gauges that drifted, of {len(drifts)}", sum(each.has_drifted for each in drifts), 0, digits=0
        ),
    ]
    print_figures(figures)
    return int(any(figure.passed is False for figure in figures))


def _growth_figure(kind: str, values: Sequence[float]) -> Figure:
    percent = 100 * growth(values, num_warm=int(WARM_SHARE * len(values)))
    return at_most(f"{kind}: memory, last third over first", percent, MOST_GROWTH, "%", digits=1)


def _curve(values: Sequence[float]) -> str:
    """As many characters as fit; full at the most that was seen."""
    step = max(1, len(values) // SPARKS)
    return sparkline(values[::step], max(values))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way, nothing outlives this process
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
