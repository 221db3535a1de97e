"""Figures of a run from its records: percentiles, rates, errors, fairness. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from deploy.bench.records import RequestRecord
from deploy.bench.slo import Slo

MILLISECONDS: Final = 1_000.0


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Of one measure, in milliseconds."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class TenantFigures:
    """One tenant's part of a run. `p95_ttft_ms` is None where no text came."""

    name: str
    num_requests: int
    num_complete: int
    num_cancelled: int
    num_errors: int
    num_prompt_tokens: int
    num_completion_tokens: int
    output_tokens_per_second: float
    goodput_per_second: float
    p50_ttft_ms: float | None
    p95_ttft_ms: float | None
    p95_itl_ms: float | None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a run showed. Latencies are of complete requests; tokens and rates are of all.

    `latencies_ms` has no entry for a measure that nobody saw. Rates are over `seconds`: an open load's
    duration and what its last answer took beyond, else from the first request's start to the last one's end.
    `goodput_per_second` counts complete requests within the SLO (without one: all). `jain_index` is
    Jain's index of tokens by weight over tenants, 1 being even; None for a single tenant.
    """

    seconds: float
    num_requests: int
    num_complete: int
    num_cancelled: int
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int | None
    output_tokens_per_second: float
    total_tokens_per_second: float
    requests_per_second: float
    goodput_per_second: float
    share_within_slo: float | None
    latencies_ms: Mapping[str, Distribution]
    errors: Mapping[str, int] = field(default_factory=dict)
    tenants: Sequence[TenantFigures] = ()
    jain_index: float | None = None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in ascending order, between its neighbours where it falls between two."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(values_seconds: Iterable[float]) -> Distribution | None:
    """None where there is no value."""
    ordered = sorted(value * MILLISECONDS for value in values_seconds)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def jain_index(values: Sequence[float]) -> float | None:
    """1 where all are equal, 1/n where one has all; None where there are less than two, or nothing."""
    squares = sum(value * value for value in values)
    if len(values) < 2 or squares == 0:
        return None
    return sum(values) ** 2 / (len(values) * squares)


def figures_of(
    records: Sequence[RequestRecord],
    *,
    slo: Slo,
    weights: Mapping[str, float],
    planned_seconds: float | None = None,
) -> Figures:
    """The figures of a run. `weights` names every tenant; a lack of records is zero tokens, not absence.

    `planned_seconds` is an open load's duration; a closed one has none.
    """
    seconds = _seconds_of(records, planned_seconds)
    complete = [record for record in records if record.is_complete]
    judged = [record for record in records if not record.is_cancelled]
    num_good = sum(slo.is_met_by(record) for record in complete)
    num_prompt, num_completion = _prompt_tokens(records), _completion_tokens(records)
    tenants = [
        _tenant_figures(name, [record for record in records if record.tenant == name], seconds, slo)
        for name in weights
    ]
    return Figures(
        seconds=seconds,
        num_requests=len(records),
        num_complete=len(complete),
        num_cancelled=sum(record.is_cancelled for record in records),
        num_prompt_tokens=num_prompt,
        num_completion_tokens=num_completion,
        num_cached_tokens=_cached_tokens(records),
        output_tokens_per_second=_rate(num_completion, seconds),
        total_tokens_per_second=_rate(num_prompt + num_completion, seconds),
        requests_per_second=_rate(len(complete), seconds),
        goodput_per_second=_rate(num_good, seconds),
        share_within_slo=num_good / len(judged) if judged and slo.bounds_ms else None,
        latencies_ms=_latencies(records),
        errors=dict(Counter(record.error for record in records if record.error is not None).most_common()),
        tenants=tenants,
        jain_index=jain_index(
            [(each.num_prompt_tokens + each.num_completion_tokens) / weights[each.name] for each in tenants]
        ),
    )


def curves_ms(records: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """The percentiles 0 to 100 of each measure that was seen."""
    ordered = {name: sorted(values) for name, values in _values_seconds(records).items()}
    return {
        name: [percentile(values, percent) * MILLISECONDS for percent in range(101)]
        for name, values in ordered.items()
        if values
    }


def _latencies(records: Sequence[RequestRecord]) -> dict[str, Distribution]:
    seen = {name: distribution(values) for name, values in _values_seconds(records).items()}
    return {name: value for name, value in seen.items() if value is not None}


def _values_seconds(records: Sequence[RequestRecord]) -> dict[str, Iterable[float]]:
    """By measure, of complete requests; how late the generator was is of all."""
    complete = [record for record in records if record.is_complete]
    return {
        "ttft": _known(complete, lambda record: record.ttft_seconds),
        "itl": (gap for record in complete for gap in record.gaps_seconds),
        "tpot": _known(complete, lambda record: record.tpot_seconds),
        "e2e": (record.e2e_seconds for record in complete),
        "jitter": _known(complete, lambda record: record.jitter_seconds),
        "late": (record.late_seconds for record in records),
    }


def _tenant_figures(name: str, records: Sequence[RequestRecord], seconds: float, slo: Slo) -> TenantFigures:
    complete = [record for record in records if record.is_complete]
    latencies = _latencies(records)
    ttft, itl = latencies.get("ttft"), latencies.get("itl")
    return TenantFigures(
        name=name,
        num_requests=len(records),
        num_complete=len(complete),
        num_cancelled=sum(record.is_cancelled for record in records),
        num_errors=sum(record.error is not None for record in records),
        num_prompt_tokens=_prompt_tokens(records),
        num_completion_tokens=_completion_tokens(records),
        output_tokens_per_second=_rate(_completion_tokens(records), seconds),
        goodput_per_second=_rate(sum(slo.is_met_by(record) for record in complete), seconds),
        p50_ttft_ms=ttft.p50 if ttft else None,
        p95_ttft_ms=ttft.p95 if ttft else None,
        p95_itl_ms=itl.p95 if itl else None,
    )


def _known(
    records: Sequence[RequestRecord], measure: Callable[[RequestRecord], float | None]
) -> Iterable[float]:
    return (value for value in map(measure, records) if value is not None)


def _seconds_of(records: Sequence[RequestRecord], planned_seconds: float | None) -> float:
    ended_at = max((record.ended_at for record in records), default=0.0)
    if planned_seconds is not None:
        return max(planned_seconds, ended_at)
    return ended_at - min((record.started_at for record in records), default=0.0)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _prompt_tokens(records: Sequence[RequestRecord]) -> int:
    return sum(record.num_prompt_tokens for record in records)


def _completion_tokens(records: Sequence[RequestRecord]) -> int:
    return sum(record.num_completion_tokens for record in records)


def _cached_tokens(records: Sequence[RequestRecord]) -> int | None:
    told = [record.num_cached_tokens for record in records if record.num_cached_tokens is not None]
    return sum(told) if told else None
