"""When requests arrive: Poisson or in bursts, at a rate that may change in phases. Pure.

A process is drawn at one arrival a unit of time; phases then stretch time, so that a spike keeps its
character.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, assert_never

BURST_VARIATION: Final = 3.0  # standard deviation over mean of the gaps; Poisson has 1
SPIKE_FACTOR: Final = 3.0


class Arrivals(StrEnum):
    """How gaps between arrivals vary."""

    POISSON = "poisson"
    BURSTS = "bursts"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """So many arrivals a second, for some seconds."""

    seconds: float
    rate: float


def steady(rate: float, duration_seconds: float) -> list[Phase]:
    """One rate all along."""
    return [Phase(seconds=duration_seconds, rate=rate)]


def spike(rate: float, duration_seconds: float) -> list[Phase]:
    """Three times the rate in the middle third."""
    third = duration_seconds / 3
    return [
        Phase(seconds=third, rate=rate),
        Phase(seconds=third, rate=rate * SPIKE_FACTOR),
        Phase(seconds=third, rate=rate),
    ]


def arrival_times(process: Arrivals, phases: Sequence[Phase], random: Random) -> list[float]:
    """Seconds from the start, ascending, all within the phases."""
    return list(_stretched(_units(_gap(process, random)), phases))


def _gap(process: Arrivals, random: Random) -> Callable[[], float]:
    """Draws gaps of mean 1."""
    match process:
        case Arrivals.POISSON:
            return lambda: random.expovariate(1.0)
        case Arrivals.BURSTS:
            shape = 1 / BURST_VARIATION**2
            return lambda: random.gammavariate(shape, 1 / shape)
        case _:
            assert_never(process)


def _units(gap: Callable[[], float]) -> Iterator[float]:
    now = gap()
    while True:
        yield now
        now += gap()


def _stretched(units: Iterator[float], phases: Sequence[Phase]) -> Iterator[float]:
    """Gives each phase as many units as its seconds times its rate."""
    unit = next(units)
    began_at, units_before = 0.0, 0.0
    for phase in phases:
        units_after = units_before + phase.seconds * phase.rate
        while unit < units_after:
            yield began_at + (unit - units_before) / phase.rate
            unit = next(units)
        began_at, units_before = began_at + phase.seconds, units_after
