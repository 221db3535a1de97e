"""What speed loads come to: latencies with and without something between, and rates. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deploy.bench.figures import Distribution, distribution
from tests.benchmarks.gateway.exchange import Seen


@dataclass(frozen=True, kw_only=True)
class Added:
    """What something between client and server adds to each percentile, in milliseconds."""

    p50: float
    p99: float


class NothingComplete(Exception):
    """Not one whole answer: there is nothing to time. The message says what came instead."""


def added(through: Distribution, direct: Distribution) -> Added:
    """The difference of each percentile."""
    return Added(p50=through.p50 - direct.p50, p99=through.p99 - direct.p99)


def answer_times(seen: Sequence[Seen]) -> Distribution:
    """From when a request was due until its answer was whole; raises NothingComplete."""
    return _distribution(seen, (one.latency for one in seen if one.is_complete))


def first_text_times(seen: Sequence[Seen]) -> Distribution:
    """From when a request was due until its first text; raises NothingComplete."""
    times = (one.first_text_latency for one in seen if one.is_complete)
    return _distribution(seen, (time for time in times if time is not None))


def gaps(seen: Sequence[Seen]) -> Distribution:
    """Between two texts of a stream; raises NothingComplete."""
    return _distribution(seen, (gap for one in seen for gap in one.gaps))


def rate(seen: Sequence[Seen]) -> float:
    """Whole answers a second, from the first request to the last answer."""
    complete = [one for one in seen if one.is_complete]
    if not complete:
        raise NothingComplete(what_failed(seen))
    return len(complete) / (max(one.ended_at for one in seen) - min(one.started_at for one in seen))


def num_failed(seen: Sequence[Seen]) -> int:
    """Requests without a whole answer, but for those whose client left."""
    return sum(one.error is not None for one in seen)


def what_failed(seen: Sequence[Seen]) -> str:
    """`12 rate_limit_exceeded, 3 connection lost`; empty when nothing did."""
    counts = Counter(one.error for one in seen if one.error is not None)
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())


def _distribution(seen: Sequence[Seen], seconds: Iterable[float]) -> Distribution:
    found = distribution(seconds)
    if found is None:
        raise NothingComplete(what_failed(seen) or "no answer had text")
    return found
