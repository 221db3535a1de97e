"""Every Prometheus metric of the engine, declared in one place. METRICS.md is their table.

Where vLLM measures the same thing, the name after the prefix, the unit and the buckets are its own
(vllm/v1/metrics/loggers.py), so that its dashboards carry over.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

PREFIX: Final = "sluice_engine_"

# vLLM's
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_STEP_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LENGTH_BUCKETS = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))[:-1]

# our own
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 1.5, 2.5, 5, 10, 30, 60)
_TENANT_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)  # few: a scrape holds up the loop's thread
_SHARE_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)


class Tally:
    """One row of a TalliedCounter."""

    def __init__(self) -> None:
        self.total = 0.0

    def inc(self, amount: float = 1) -> None:
        """Counts `amount`, which is not negative."""
        self.total += amount


class TalliedCounter(Collector):
    """A counter that the loop's thread alone counts on, so that its rows need no lock."""

    def __init__(self, name: str, documentation: str, labelnames: Sequence[str]) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, labelnames
        self._rows: dict[tuple[str, ...], Tally] = {}

    def labels(self, *labels: str) -> Tally:
        """The row with these values of the labels."""
        return self._rows.setdefault(labels, Tally())

    def collect(self) -> Iterable[CounterMetricFamily]:
        """All rows, for the registry."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, row in list(self._rows.items()):  # a copy: the loop's thread may add rows
            family.add_metric(labels, row.total)
        yield family


class BucketTally:
    """One row of a TalliedHistogram."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Counts `count` samples of `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def cumulative(self) -> list[int]:
        """How many samples do not exceed each bound, and all of them."""
        return list(accumulate(self._counts))


class TalliedHistogram(Collector):
    """A histogram that takes many equal samples at once: most gaps between tokens of a step are equal.

    The library's own takes them one at a time, under two locks each. Only the loop's thread writes; a scrape
    may read a sum that is a sample ahead of the counts.
    """

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str], *, buckets: Sequence[float]
    ) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, labelnames
        self._buckets = buckets
        self._bounds = [*(str(float(bound)) for bound in buckets), "+Inf"]
        self._rows: dict[tuple[str, ...], BucketTally] = {}

    def labels(self, *labels: str) -> BucketTally:
        """The row with these values of the labels."""
        return self._rows.setdefault(labels, BucketTally(self._buckets))

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """All rows, for the registry."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, row in list(self._rows.items()):  # a copy: the loop's thread may add rows
            buckets = list(zip(self._bounds, row.cumulative(), strict=True))
            family.add_metric(labels, buckets=buckets, sum_value=row.sum)
        yield family


class Metrics:
    """The engine's metrics in a registry of their own.

    One with labels is a function from their values, in the order declared, to the row to count on. The rows
    are cached, as looking one up in the library costs more than counting.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._declare_latencies()
        self._declare_requests()
        self._declare_tokens()
        self._declare_steps()
        self._declare_cache()
        self._declare_load()
        self._declare_tenants()

    def _declare_latencies(self) -> None:
        by_class, by_size = ("request_class",), ("request_class", "prompt_size")
        self.time_to_first_token = self._histograms(
            "time_to_first_token_seconds", "From arrival to the first token", _FIRST_TOKEN_BUCKETS, by_size
        )
        self.inter_token_latency = self._tallied_histograms(
            "inter_token_latency_seconds", "Between tokens of a request", _TOKEN_BUCKETS, by_size
        )
        self.longest_gap = self._histograms(
            "request_max_inter_token_latency_seconds",
            "The longest time between tokens of a request",
            _TOKEN_BUCKETS,
            by_size,
        )
        self.time_per_output_token = self._histograms(
            "request_time_per_output_token_seconds",
            "Mean time for a token of a request after its first",
            _TOKEN_BUCKETS,
            by_class,
        )
        self.e2e_latency = self._histograms(
            "e2e_request_latency_seconds", "From arrival to the end", _REQUEST_BUCKETS, by_size
        )
        self.queue_time = self._histograms(
            "request_queue_time_seconds", "From arrival to the first step", _REQUEST_BUCKETS, by_class
        )
        self.inference_time = self._histograms(
            "request_inference_time_seconds", "From the first step to the end", _REQUEST_BUCKETS, by_class
        )
        self.prefill_time = self._histograms(
            "request_prefill_time_seconds",
            "From the first step to the first token",
            _REQUEST_BUCKETS,
            by_class,
        )
        self.decode_time = self._histograms(
            "request_decode_time_seconds", "From the first token to the end", _REQUEST_BUCKETS, by_class
        )
        self.cancel_to_free = self._histogram(
            "cancel_to_free_seconds", "From a cancel to its blocks being free", _STEP_BUCKETS
        )

    def _declare_requests(self) -> None:
        by_class = ("request_class",)
        self.request_prompt_tokens = self._histograms(
            "request_prompt_tokens", "Tokens of a request's prompt", _LENGTH_BUCKETS, by_class
        )
        self.request_generation_tokens = self._histograms(
            "request_generation_tokens", "Tokens of a request's answer", _LENGTH_BUCKETS, by_class
        )
        self.ended = self._tallied_counters(
            "request_success",
            "Requests taken in, by how they ended",
            ("finished_reason", "request_class", "tenant"),
        )
        self.admission_outcomes = self._tallied_counters(
            "admission_outcomes",
            "Requests admitted, or refused by reason",
            ("reason", "request_class", "tenant"),
        )
        self.waiting_timeouts = self._counters(
            "waiting_timeouts",
            "Requests refused as they waited too long, by what they last waited for",
            ("wait_reason", "request_class"),
        )

    def _declare_tokens(self) -> None:
        by_tenant = ("tenant",)
        self.prompt_tokens = self._tallied_counters(
            "prompt_tokens", "Prompt tokens of requests that have their first token", by_tenant
        )
        self.prompt_tokens_cached = self._tallied_counters(
            "prompt_tokens_cached", "Of these, found in the prefix cache", by_tenant
        )
        self.generation_tokens = self._tallied_counters("generation_tokens", "Tokens sampled", by_tenant)
        self.recomputed_tokens = self._counter(
            "recomputed_tokens", "Tokens computed again after a preemption"
        )

    def _declare_steps(self) -> None:
        self.step = self._histogram("step_seconds", "One step", _STEP_BUCKETS)
        self.step_tokens = self._histogram(
            "iteration_tokens_total", "Tokens computed by a step", _STEP_TOKENS_BUCKETS
        )
        self.step_tokens_by_kind = self._histograms(
            "iteration_tokens_by_kind",
            "Tokens of a kind that a step computed",
            _STEP_TOKENS_BUCKETS,
            ("kind",),
        )
        self.step_budget = self._gauge(
            "iteration_token_budget", "The most tokens that the last step might have had"
        )
        self.step_budget_used = self._histogram(
            "iteration_token_budget_used_ratio", "Share of its token budget that a step used", _SHARE_BUCKETS
        )

    def _declare_cache(self) -> None:
        self.kv_cache_usage = self._gauge("kv_cache_usage_perc", "Share of cache blocks in use; 1 is all")
        self.kv_blocks = self._gauges(
            "kv_blocks", "Cache blocks: used, cached (held by nobody) and free", ("state",)
        )
        self.blocks_freed = self._counters(
            "kv_blocks_freed", "Cache blocks that requests gave back", ("cause",)
        )
        self.blocks_evicted = self._counter(
            "kv_blocks_evicted", "Cached blocks whose text made room for other text"
        )
        self.prefix_cache_queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache, at first admission only"
        )
        self.prefix_cache_hits = self._counter("prefix_cache_hits", "Of these, found")
        self.preemptions = self._counters(
            "num_preemptions", "Times that a request's blocks were taken back", ("request_class",)
        )

    def _declare_load(self) -> None:
        by_class = ("request_class",)
        self.running = self._gauges("num_requests_running", "In the running set", by_class)
        self.waiting = self._gauges("num_requests_waiting", "Waiting for room", by_class)
        self.waiting_by_reason = self._gauges(
            "num_requests_waiting_by_reason",
            "Waiting, by what for",
            ("tenant", "request_class", "reason"),
        )
        self.guardrail_level = self._gauge("guardrail_level", "Where the guardrails stand; 0 is normal")

    def _declare_tenants(self) -> None:
        by_tenant, by_class = ("tenant",), ("tenant", "request_class")
        self.tenant_time_to_first_token = self._tallied_histograms(
            "tenant_time_to_first_token_seconds",
            "From arrival to the first token",
            _TENANT_BUCKETS,
            by_class,
        )
        self.tenant_inter_token_latency = self._tallied_histograms(
            "tenant_inter_token_latency_seconds", "Between tokens of a request", _TENANT_BUCKETS, by_class
        )
        self.tenant_queue_time = self._tallied_histograms(
            "tenant_queue_time_seconds", "From arrival to the first step", _TENANT_BUCKETS, by_class
        )
        self.tenant_running = self._gauges("tenant_requests_running", "In the running set", by_tenant)
        self.tenant_service = self._tallied_counters(
            "tenant_service_tokens", "Tokens charged, before weights", by_tenant
        )
        self.fairness_index = self._gauge(
            "fairness_index",
            "Jain's index of weighted service over ten seconds; 1 is even, NaN nobody served",
        )
        self.fairness_index.set(float("nan"))

    # --- one metric, or its rows by label values -------------------------------------------------------

    def _counter(self, name: str, documentation: str, labelnames: Sequence[str] = ()) -> Counter:
        return Counter(PREFIX + name, documentation, labelnames, registry=self.registry)

    def _counters(self, name: str, documentation: str, labelnames: Sequence[str]) -> Callable[..., Counter]:
        return cache(self._counter(name, documentation, labelnames).labels)

    def _gauge(self, name: str, documentation: str, labelnames: Sequence[str] = ()) -> Gauge:
        return Gauge(PREFIX + name, documentation, labelnames, registry=self.registry)

    def _gauges(self, name: str, documentation: str, labelnames: Sequence[str]) -> Callable[..., Gauge]:
        return cache(self._gauge(name, documentation, labelnames).labels)

    def _histogram(
        self, name: str, documentation: str, buckets: Sequence[float], labelnames: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(PREFIX + name, documentation, labelnames, buckets=buckets, registry=self.registry)

    def _histograms(
        self, name: str, documentation: str, buckets: Sequence[float], labelnames: Sequence[str]
    ) -> Callable[..., Histogram]:
        return cache(self._histogram(name, documentation, buckets, labelnames).labels)

    def _tallied_counters(
        self, name: str, documentation: str, labelnames: Sequence[str]
    ) -> Callable[..., Tally]:
        counter = TalliedCounter(PREFIX + name, documentation, labelnames)
        self.registry.register(counter)
        return cache(counter.labels)

    def _tallied_histograms(
        self, name: str, documentation: str, buckets: Sequence[float], labelnames: Sequence[str]
    ) -> Callable[..., BucketTally]:
        histogram = TalliedHistogram(PREFIX + name, documentation, labelnames, buckets=buckets)
        self.registry.register(histogram)
        return cache(histogram.labels)
