"""What a request must keep to count as goodput. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from deploy.bench.records import RequestRecord

MEASURES: Final = ("ttft", "itl", "tpot", "e2e", "jitter")
_MS_PER_UNIT: Final = {"ms": 1.0, "s": 1_000.0}
_TERM: Final = re.compile(r"(?P<measure>\w+)=(?P<number>\d+(\.\d+)?)(?P<unit>ms|s)")


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Upper bounds in milliseconds by measure. `itl` binds the 95th percentile of a request's own gaps."""

    bounds_ms: Mapping[str, float] = field(default_factory=dict)

    def is_met_by(self, record: RequestRecord) -> bool:
        """Whether a complete request kept every bound; one on what it has not (gaps of one token) is kept."""
        return all(
            (seen := _seen_seconds(record, measure)) is None or seen * 1_000 <= bound
            for measure, bound in self.bounds_ms.items()
        )


def parse_slo(text: str) -> Slo:
    """Reads `ttft=1500ms,itl=120ms`; raises ValueError with one line that says what is wrong."""
    bounds: dict[str, float] = {}
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None or match["measure"] not in MEASURES:
            raise ValueError(
                f"write MEASURE=TIME such as ttft=1500ms, not '{term.strip()}'; "
                f"the measures are {', '.join(MEASURES)}"
            )
        bounds[match["measure"]] = float(match["number"]) * _MS_PER_UNIT[match["unit"]]
    return Slo(bounds_ms=bounds)


def _seen_seconds(record: RequestRecord, measure: str) -> float | None:
    match measure:
        case "ttft":
            return record.ttft_seconds
        case "itl":
            gaps = sorted(record.gaps_seconds)
            return gaps[int(0.95 * (len(gaps) - 1))] if gaps else None
        case "tpot":
            return record.tpot_seconds
        case "e2e":
            return record.e2e_seconds
        case "jitter":
            return record.jitter_seconds
        case _:
            raise AssertionError(f"no measure {measure}")
