"""How a run's figures are put into words, the same in the terminal and on the page. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from deploy.bench.figures import Figures
from deploy.bench.report import RunReport

MEASURES: Final = {
    "ttft": "time to first token",
    "itl": "between tokens",
    "tpot": "per output token",
    "e2e": "whole request",
    "jitter": "longest gap of a request",
    "late": "sent late by us",
}
LATE_MS: Final = 20.0  # the p99 of late starts beyond which latencies are partly our own
Fact = tuple[str, str]


def facts_of(run: RunReport) -> Iterator[Fact]:
    """Name and value of all but the distributions."""
    figures = run.figures
    left = f", {figures.num_cancelled} left as planned" if figures.num_cancelled else ""
    yield "complete", f"{figures.num_complete} of {figures.num_requests} in {figures.seconds:,.1f} s{left}"
    yield "output", f"{figures.output_tokens_per_second:,.1f} tokens/s"
    yield "total", f"{figures.total_tokens_per_second:,.1f} tokens/s"
    yield "requests", f"{figures.requests_per_second:,.2f} a second"
    if figures.share_within_slo is not None:
        yield (
            "goodput",
            f"{figures.goodput_per_second:,.2f} a second, {figures.share_within_slo:.1%} within the SLO",
        )
    if figures.num_cached_tokens is not None and figures.num_prompt_tokens:
        yield "cached", f"{figures.num_cached_tokens / figures.num_prompt_tokens:.1%} of prompt tokens"
    if figures.jain_index is not None:
        yield "fairness", f"Jain's index {figures.jain_index:.3f} of tokens by weight"
    yield from _sampled(run)


SUMMARY_COLUMNS: Final = (
    "load",
    "done",
    "failed",
    "tok/s",
    "ttft p95",
    "tpot p50",
    "itl p95",
    "good/s",
)


def summary_of(run: RunReport) -> tuple[str, ...]:
    """One row for a run, as SUMMARY_COLUMNS names it; empty where nothing was seen."""
    figures = run.figures
    return (
        run.name,
        f"{figures.num_complete:,}",
        f"{sum(figures.errors.values()):,}",
        f"{figures.output_tokens_per_second:,.1f}",
        _latency(figures, "ttft", "p95"),
        _latency(figures, "tpot", "p50"),
        _latency(figures, "itl", "p95"),
        f"{figures.goodput_per_second:,.2f}",
    )


def is_generator_late(figures: Figures) -> bool:
    """Whether the generator itself fell behind, so that latencies and rates are partly its own."""
    late = figures.latencies_ms.get("late")
    return late is not None and late.p99 > LATE_MS


def _latency(figures: Figures, measure: str, percentile: str) -> str:
    seen = figures.latencies_ms.get(measure)
    return "" if seen is None else f"{getattr(seen, percentile):,.1f}"


def _sampled(run: RunReport) -> Iterator[Fact]:
    kv = _known([sample.kv_utilization for sample in run.samples])
    if kv:
        yield "KV cache", f"{sum(kv) / len(kv):.1%} used on average, {max(kv):.1%} at most"
    resident = _known([sample.resident_bytes for sample in run.samples])
    if resident:
        yield "memory", f"{max(resident) / 2**20:,.0f} MiB resident at most"


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
