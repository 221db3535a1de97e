"""What is compared and what is promised: measures, medians over runs, targets and their verdicts. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from deploy.bench.figures import Figures
from tests.benchmarks.peers.loads import C1, C32, Load

INT8: Final = "ours-int8"
FLOAT32: Final = "ours-float32"
LLAMA_CPP: Final = "llama.cpp"
VLLM: Final = "vllm"
VLLM_FLOAT32: Final = "vllm-float32"
OPENVINO: Final = "openvino"


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """One start of one system: how long it took, and what each load showed, by its name."""

    start_seconds: float
    by_load: Mapping[str, Figures]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One row of absolute figures. `read` gives None where nobody saw a value."""

    name: str
    read: Callable[[RunFigures], float | None]
    digits: int = 1


@dataclass(frozen=True, kw_only=True)
class AtMost:
    """Ours divided by theirs may not exceed `factor`."""

    factor: float

    def is_met_by(self, ratio: float) -> bool:
        """On the bound is met."""
        return ratio <= self.factor

    def __str__(self) -> str:
        return f"≤ {self.factor:g} ×"


@dataclass(frozen=True, kw_only=True)
class AtLeast:
    """Ours divided by theirs may not fall below `factor`."""

    factor: float

    def is_met_by(self, ratio: float) -> bool:
        """On the bound is met."""
        return ratio >= self.factor

    def __str__(self) -> str:
        return f"≥ {self.factor:g} ×"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What ours promises against one peer, in one measure."""

    measure: Measure
    ours: str
    bound: AtMost | AtLeast
    peer: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A target and what was seen. `ratio` is None where one of the two was not measured."""

    target: Target
    ratio: float | None

    @property
    def is_met(self) -> bool | None:
        """None where nothing was shown."""
        return None if self.ratio is None else self.target.bound.is_met_by(self.ratio)


def _latency(load: Load, name: str, statistic: str) -> Callable[[RunFigures], float | None]:
    def read(run: RunFigures) -> float | None:
        figures = run.by_load.get(load.name)
        seen = figures and figures.latencies_ms.get(name)
        return getattr(seen, statistic) if seen else None

    return read


def _throughput(load: Load) -> Callable[[RunFigures], float | None]:
    def read(run: RunFigures) -> float | None:
        figures = run.by_load.get(load.name)
        return figures.output_tokens_per_second if figures else None

    return read


def num_failed(run: RunFigures) -> int:
    """Requests without a whole answer."""
    return sum(figures.num_requests - figures.num_complete for figures in run.by_load.values())


C1_TPOT: Final = Measure(name="c1 TPOT, ms", read=_latency(C1, "tpot", "p50"))
C1_TTFT: Final = Measure(name="c1 TTFT, ms", read=_latency(C1, "ttft", "p50"))
C32_RATE: Final = Measure(name="c32 output tokens/s", read=_throughput(C32))
C32_TTFT: Final = Measure(name="c32 mean TTFT, ms", read=_latency(C32, "ttft", "mean"), digits=0)
C32_TPOT: Final = Measure(name="c32 TPOT, ms", read=_latency(C32, "tpot", "p50"))
FAILED: Final = Measure(name="failed requests", read=num_failed, digits=0)
START: Final = Measure(name="start-up, s", read=lambda run: run.start_seconds)

MEASURES: Final = (C1_TPOT, C1_TTFT, C32_RATE, C32_TTFT, C32_TPOT, FAILED, START)
PROMISED: Final = (
    Target(measure=C1_TPOT, ours=INT8, bound=AtMost(factor=0.5), peer=LLAMA_CPP),
    Target(measure=C1_TPOT, ours=INT8, bound=AtMost(factor=0.25), peer=VLLM),
    Target(measure=C1_TTFT, ours=INT8, bound=AtMost(factor=0.5), peer=VLLM),
    Target(measure=C32_RATE, ours=INT8, bound=AtLeast(factor=4.0), peer=VLLM),
    Target(measure=C32_RATE, ours=INT8, bound=AtLeast(factor=1.5), peer=OPENVINO),
    Target(measure=C32_RATE, ours=FLOAT32, bound=AtLeast(factor=1.3), peer=VLLM),
)

# Where bfloat16 is emulated, a ratio to it proves nothing: float32 has to be beaten by as much.
TARGETS: Final = (
    *PROMISED,
    *(replace(target, peer=VLLM_FLOAT32) for target in PROMISED if target.peer == VLLM),
)


def targets_among(names: Iterable[str]) -> list[Target]:
    """Those of which both systems are there."""
    there = set(names)
    return [target for target in TARGETS if {target.ours, target.peer} <= there]


def median_of(measure: Measure, runs: Sequence[RunFigures]) -> float | None:
    """Of the runs that saw it; None where none did."""
    seen = [value for run in runs if (value := measure.read(run)) is not None]
    return median(seen) if seen else None


def verdict(target: Target, runs: Mapping[str, Sequence[RunFigures]]) -> Verdict:
    """`runs` by system; systems that are not there were not measured."""
    ours = median_of(target.measure, runs.get(target.ours, ()))
    theirs = median_of(target.measure, runs.get(target.peer, ()))
    return Verdict(target=target, ratio=ours / theirs if ours is not None and theirs else None)
