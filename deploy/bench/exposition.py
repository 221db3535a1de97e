"""What a server's Prometheus page tells of its memory: KV utilisation, resident bytes, requests. Pure.

Ours and vLLM's names share their stems (`sluice_engine_kv_cache_usage_perc`, `vllm:kv_cache_usage_perc`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

KV_UTILIZATION: Final = "kv_cache_usage_perc"
RESIDENT_MEMORY: Final = "process_resident_memory_bytes"
NUM_RUNNING: Final = "num_requests_running"
NUM_WAITING: Final = "num_requests_waiting"
_STEMS: Final = (KV_UTILIZATION, RESIDENT_MEMORY, NUM_RUNNING, NUM_WAITING)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look at the page, `at_seconds` into the run. None is what the server does not tell.

    `kv_utilization` is a part of 1.
    """

    at_seconds: float
    kv_utilization: float | None = None
    resident_bytes: float | None = None
    num_running: float | None = None
    num_waiting: float | None = None


def sample_of(pages: Sequence[str], at_seconds: float) -> Sample:
    """Of all pages together: memory and requests add up, KV utilisation is that of the fullest.

    Raises ValueError for what is no such page.
    """
    values = [value for page in pages for value in _values(page)]

    def of(stem: str) -> list[float]:
        return [value for name, value in values if name == stem]

    return Sample(
        at_seconds=at_seconds,
        kv_utilization=max(of(KV_UTILIZATION), default=None),
        resident_bytes=_sum(of(RESIDENT_MEMORY)),
        num_running=_sum(of(NUM_RUNNING)),
        num_waiting=_sum(of(NUM_WAITING)),
    )


def _values(page: str) -> list[tuple[str, float]]:
    """Only lines of interest are parsed: histograms make the most of a page, and parsing takes its time."""
    lines = [line for line in page.splitlines() if _stem_of(line.split("{")[0].split(" ")[0]) is not None]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return [
        (stem, sample.value)
        for family in families
        for sample in family.samples
        if (stem := _stem_of(sample.name)) is not None
    ]


def _stem_of(name: str) -> str | None:
    """Whatever prefix a server writes before it."""
    return next((stem for stem in _STEMS if name == stem or name.endswith((f"_{stem}", f":{stem}"))), None)


def _sum(values: Sequence[float]) -> float | None:
    return sum(values) if values else None
