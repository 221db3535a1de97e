"""Who sends what, when: tenants that share a trace's arrivals and lengths."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from engine.core.sequence import SequenceClass
from tests.benchmarks.scheduler.traces import TracedRequest
from tests.builders.simulator.requests import Request

MAX_TOKENS = 1024  # what clients ask for, whatever the answer's length turns out to be


@dataclass(frozen=True, kw_only=True)
class Sender:
    """A tenant's part of the load. `lengths` is what it sends, (prompt, output), for a traced row."""

    tenant: str
    requests_per_second: float
    start: float = 0.0
    end: float = float("inf")
    weight: float = 1.0
    lengths: Callable[[TracedRequest], tuple[int, int]] | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How a trace's lengths are made smaller."""

    divisor: int = 1
    max_tokens: int = MAX_TOKENS

    def lengths(self, row: TracedRequest) -> tuple[int, int]:
        """Prompt and output tokens of a row; at least two each."""
        prompt = max(2, round(row.num_prompt_tokens / self.divisor))
        return prompt, min(self.max_tokens, max(2, round(row.num_output_tokens / self.divisor)))


def shared_trace(
    trace: Sequence[TracedRequest], senders: Sequence[Sender], scale: Scale, *, seconds: float, seed: int
) -> list[Request]:
    """`seconds` of load in which every sender plays a part of the trace at its own rate.

    A sender's requests depend on `seed` and its own facts only: the same with and without others.
    """
    requests = [
        request for sender in senders for request in _sent_by(sender, trace, scale, seconds, seed)
    ]  # fmt: skip
    return sorted(requests, key=lambda request: request.at)


def backlog(
    trace: Sequence[TracedRequest], count: int, scale: Scale, *, tenant: str, sequence_class: SequenceClass
) -> list[Request]:
    """`count` requests that are all there from the start."""
    rows = [trace[index % len(trace)] for index in range(count)]
    return [
        replace(_request(row, 0.0, tenant, scale.lengths(row), scale), sequence_class=sequence_class)
        for row in rows
    ]


def _sent_by(
    sender: Sender, trace: Sequence[TracedRequest], scale: Scale, seconds: float, seed: int
) -> list[Request]:
    """As many consecutive rows as the rate asks for, from a random one on, their times stretched to fit.

    So the rate is exact and the bursts are the trace's own, of each tenant at other times.
    """
    start, end = sender.start, min(seconds, sender.end)
    count = round(sender.requests_per_second * (end - start))
    if count == 0:
        return []
    first = random.Random(f"{seed} {sender.tenant}").randrange(len(trace))
    rows = [trace[(first + index) % len(trace)] for index in range(count + 1)]
    moments = [0.0]
    for before, row in pairwise(rows):
        moments.append(moments[-1] + max(0.0, row.at - before.at))  # where the trace starts over: at once
    stretch = (end - start) / moments[-1]
    return [
        _request(
            row,
            start + moment * stretch,
            sender.tenant,
            (sender.lengths or scale.lengths)(row),
            scale,
            weight=sender.weight,
        )
        for row, moment in zip(rows[:-1], moments[:-1], strict=True)
    ]


def _request(
    row: TracedRequest,
    at: float,
    tenant: str,
    lengths: tuple[int, int],
    scale: Scale,
    *,
    weight: float = 1.0,
) -> Request:
    prompt, output = lengths
    return Request(
        at=at,
        tenant=tenant,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        max_tokens=max(scale.max_tokens, output),
        weight=weight,
    )
