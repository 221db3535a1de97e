"""Makes new load from past requests: their lengths, arrivals, cancels and tenants, drawn again. Pure.

Runs of consecutive requests are drawn whole, so that bursts and what tenants do together stay together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from deploy.bench.draws import random_for
from deploy.bench.lengths import fitted
from deploy.bench.workload import Conversation, OpenLoad, Segment, Tenant, Turn

RUN_LENGTH: Final = 16  # consecutive requests that are drawn together


@dataclass(frozen=True, kw_only=True)
class PastRequest:
    """One request as the ledger knows it. `at_seconds` is on any clock."""

    at_seconds: float
    tenant_name: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    is_cancelled: bool
    is_offline: bool


def resampled_load(
    past: Sequence[PastRequest],
    *,
    tenants: Sequence[Tenant],
    seed: int,
    rate: float | None,
    duration_seconds: float,
    length_scale: float,
    max_model_len: int,
) -> OpenLoad:
    """As much as fits the duration, from at least two past requests in order of time.

    `rate` (None: the past's own) is of requests a second. A tenant of the past uses the key of that name; the
    first key, where there is none.
    """
    by_name = {tenant.name: tenant for tenant in tenants}
    random = random_for(seed, "resampling")
    return OpenLoad(
        name="usage",
        duration_seconds=duration_seconds,
        conversations=[
            Conversation(
                at_seconds=at,
                tenant=_tenant(request.tenant_name, by_name, tenants[0]),
                is_offline=request.is_offline,
                turns=(_turn(number, request, length_scale, max_model_len),),
            )
            for number, (at, request) in enumerate(
                _until(duration_seconds, _drawn(past, _time_scale(past, rate), random))
            )
        ],
    )


def _time_scale(past: Sequence[PastRequest], rate: float | None) -> float:
    mean_gap = (past[-1].at_seconds - past[0].at_seconds) / (len(past) - 1)
    return 1.0 if rate is None or mean_gap == 0 else 1 / (rate * mean_gap)


def _drawn(
    past: Sequence[PastRequest], time_scale: float, random: Random
) -> Iterator[tuple[float, PastRequest]]:
    """Without end, unless the past took no time at all: then what there was, once."""
    now = 0.0
    while True:
        before = now
        start = random.randrange(1, len(past))
        for number in range(start, min(start + RUN_LENGTH, len(past))):
            now += (past[number].at_seconds - past[number - 1].at_seconds) * time_scale
            yield now, past[number]
        if now == before and past[0].at_seconds == past[-1].at_seconds:
            return


def _until(seconds: float, drawn: Iterator[tuple[float, PastRequest]]) -> Iterator[tuple[float, PastRequest]]:
    for at, request in drawn:
        if at >= seconds:
            return
        yield at, request


def _turn(number: int, request: PastRequest, scale: float, max_model_len: int) -> Turn:
    """What was cached then is shared within the tenant now. Who left had asked for more: twice as much."""
    factor = 2 if request.is_cancelled else 1
    sizes = fitted(
        request.num_prompt_tokens * scale, request.num_output_tokens * scale * factor, max_model_len
    )
    num_shared = min(round(request.num_cached_tokens * scale), sizes.num_prompt_tokens)
    segments = (
        Segment(name=f"tenant {request.tenant_name}", num_tokens=num_shared),
        Segment(name=f"usage {number}", num_tokens=sizes.num_prompt_tokens - num_shared),
    )
    leaves_after = max(1, min(round(request.num_output_tokens * scale), sizes.num_output_tokens))
    return Turn(
        new_segments=tuple(segment for segment in segments if segment.num_tokens > 0),
        num_output_tokens=sizes.num_output_tokens,
        leaves_after_tokens=leaves_after if request.is_cancelled else None,
    )


def _tenant(name: str, by_name: Mapping[str, Tenant], fallback: Tenant) -> Tenant:
    return by_name.get(name) or replace(fallback, name=name, weight=1.0)
