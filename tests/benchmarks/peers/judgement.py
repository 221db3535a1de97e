"""Whether ours kept what it promises against the systems that were measured, in lines for people. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmarks.peers.table import described, shown
from tests.benchmarks.peers.targets import RunFigures, Verdict, num_failed, targets_among, verdict

OURS: Final = "ours-"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`misses` has a line for each target missed and for each of ours that did not serve as it must."""

    num_met: int
    num_judged: int
    num_not_shown: int
    misses: Sequence[str]

    @property
    def is_good(self) -> bool:
        """Something was shown, and nothing missed."""
        return self.num_judged > 0 and not self.misses


def judge(runs: Mapping[str, Sequence[RunFigures]], names: Sequence[str]) -> Judgement:
    """`names` were asked for; those without `runs` could not be measured."""
    verdicts = [verdict(target, runs) for target in targets_among(names)]
    judged = [each for each in verdicts if each.is_met is not None]
    missed = [each for each in judged if not each.is_met]
    return Judgement(
        num_met=len(judged) - len(missed),
        num_judged=len(judged),
        num_not_shown=len(verdicts) - len(judged),
        misses=[*map(_line, missed), *_faults(runs, names)],
    )


def _line(missed: Verdict) -> str:
    return f"{missed.target.measure.name}: {described(missed)}, it is {shown(missed)}"


def _faults(runs: Mapping[str, Sequence[RunFigures]], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name.startswith(OURS) and name not in runs:
            yield f"{name}: it could not be measured"
        elif name.startswith(OURS) and any(map(num_failed, runs[name])):
            yield f"{name}: {sum(map(num_failed, runs[name]))} requests failed; none may"
