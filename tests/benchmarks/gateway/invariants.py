"""What must hold of limits, decided from what was charged and who ran when. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Span = tuple[float, float]


def most_at_once(spans: Sequence[Span]) -> int:
    """How many spans overlap at most; one that ends as another begins does not overlap it."""
    changes = [(began_at, 1) for began_at, _ in spans] + [(ended_at, -1) for _, ended_at in spans]
    count = most = 0
    for _, change in sorted(changes):
        count += change
        most = max(most, count)
    return most


def worst_use(uses: Iterable[tuple[float, int]], *, refill_per_second: float) -> float:
    """Of all intervals, the most that was used beyond what was refilled in them: at most a bucket's capacity.

    `uses` are times, in any order, and amounts.
    """
    worst = current = 0.0
    before: float | None = None
    for at, amount in sorted(uses):
        refilled = 0.0 if before is None else refill_per_second * (at - before)
        current = max(0.0, current - refilled) + amount
        worst, before = max(worst, current), at
    return worst


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What was delivered beside what was charged, over the requests whose id a client saw."""

    num_delivered: int
    num_charged: int
    num_requests_short: int
    num_tokens_short: int


def delivery(received: Mapping[str, int], charged: Mapping[str, int]) -> Delivery:
    """Output tokens by request id. One that was not charged at all is short of all that it delivered."""
    short = [
        tokens - charged.get(request_id, 0)
        for request_id, tokens in received.items()
        if tokens > charged.get(request_id, 0)
    ]
    return Delivery(
        num_delivered=sum(received.values()),
        num_charged=sum(charged.get(request_id, 0) for request_id in received),
        num_requests_short=len(short),
        num_tokens_short=sum(short),
    )


def num_charged_twice(request_ids: Sequence[str]) -> int:
    """Requests with more than one charge."""
    return sum(count > 1 for count in Counter(request_ids).values())


def growth(values: Sequence[float], *, num_warm: int) -> float:
    """The mean of the last third over that of the first, less one; the first `num_warm` do not count."""
    steady = values[num_warm:]
    third = len(steady) // 3
    if third == 0:
        return 0.0
    first, last = steady[:third], steady[-third:]
    return sum(last) / sum(first) - 1 if sum(first) else 0.0
