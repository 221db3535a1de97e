"""Every metric of a gateway process. Knows how to count, not what is worth counting.

With PROMETHEUS_MULTIPROC_DIR set, workers write to that folder, and whoever serves `/metrics` sums them.
"""

from collections.abc import Callable
from functools import cache
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Metric = TypeVar("Metric", Counter, Gauge, Histogram)

MAX_TENANT_LABELS: Final = 1_000
OTHER: Final = "other"
_LATENCY_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1)


class LabelCap:
    """Keeps a label's values few: the first `most` are told apart, all others are `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def fold(self, value: str) -> str:
        """The label to use for a value."""
        if value not in self._seen:
            if len(self._seen) >= self._most:
                return OTHER
            self._seen.add(value)
        return value


class Labelled(Generic[Metric]):
    """A metric that finds the child of given labels once: the library takes 2 to 3 us each time.

    So many are kept as there are children.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric: Metric = metric
        self.labels: Callable[..., Metric] = cache(metric.labels)


class GatewayMetrics:
    """The metrics, each under its published name. Models are only those that engines serve."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tenants = LabelCap(MAX_TENANT_LABELS)
        self.requests = Labelled(
            Counter(
                "gateway_requests",
                "Inference requests by how they ended",
                ("request_class", "model", "tenant", "outcome"),
                registry=registry,
            )
        )
        self.tokens = Labelled(
            Counter("gateway_tokens", "Tokens charged", ("kind", "model", "tenant"), registry=registry)
        )
        self.quota_rejected = Labelled(
            Counter(
                "gateway_quota_rejected",
                "Requests over a limit of their tenant",
                ("kind",),
                registry=registry,
            )
        )
        self.refused = Labelled(
            Counter(
                "gateway_requests_refused",
                "Inference requests that were not admitted, by the reason that their response gives",
                ("reason", "tenant"),
                registry=registry,
            )
        )
        self.stream_aborts = Labelled(
            Counter("gateway_stream_aborts", "Answers cut short, by whom", ("by",), registry=registry)
        )
        self.responses = Labelled(
            Counter(
                "gateway_http_responses",
                "Responses by route and status",
                ("route", "status"),
                registry=registry,
            )
        )
        self.file_bytes = Labelled(
            Counter(
                "gateway_file_bytes",
                "Bytes of tenants' files that were stored (in) and read (out)",
                ("direction", "tenant"),
                registry=registry,
            )
        )
        self.overhead = Histogram(
            "gateway_overhead_seconds",
            "Our own work on a request before it is queued, reserving included",
            buckets=_OVERHEAD_BUCKETS,
            registry=registry,
        )
        self.admission_wait = Labelled(
            Histogram(
                "gateway_admission_wait_seconds",
                "Time from being queued to being handed to an engine",
                ("request_class",),
                buckets=_LATENCY_BUCKETS,
                registry=registry,
            )
        )
        self.time_to_first_token = Labelled(
            Histogram(
                "gateway_time_to_first_token_seconds",
                "Time from the request's arrival to its first token",
                ("request_class",),
                buckets=_LATENCY_BUCKETS,
                registry=registry,
            )
        )
        self.duration = Labelled(
            Histogram(
                "gateway_request_duration_seconds",
                "Time from the request's arrival to its end",
                ("request_class",),
                buckets=_LATENCY_BUCKETS,
                registry=registry,
            )
        )
        self.in_flight = Gauge(
            "gateway_requests_in_flight",
            "Inference requests being served",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.items_in_flight = Gauge(
            "gateway_batch_items_in_flight",
            "Lines of batches that are being run",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.queued = Labelled(
            Gauge(
                "gateway_queued_requests",
                "Requests that wait in the gateway for room at an engine",
                ("request_class",),
                registry=registry,
                multiprocess_mode="livesum",
            )
        )
        self.engines_connected = Gauge(
            "gateway_engines_connected",
            "Engines that this process can reach",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.store_up = Gauge(
            "gateway_store_up",
            "1 while the store answers; at 0 requests live on what was lent before",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.batches_open = Labelled(
            Gauge(
                "gateway_batches_open",
                "Batches that have not ended, of all tenants",
                ("status",),
                registry=registry,
                multiprocess_mode="livemostrecent",  # whoever leads knows
            )
        )
        self.oldest_batch_age = Gauge(
            "gateway_batch_oldest_item_age_seconds",
            "Time since the oldest batch that has not ended was submitted",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self.batch_items = Labelled(
            Counter(
                "gateway_batch_items",
                "Items of batches that have ended, by what became of them",
                ("outcome",),
                registry=registry,
            )
        )
