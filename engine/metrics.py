"""Every Prometheus metric of the engine, declared in one place."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 1.5, 2.5, 5, 10, 30, 60)


class Metrics:
    """The engine's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.time_to_first_token = Histogram(
            "sluice_engine_time_to_first_token_seconds",
            "From arrival to the first token",
            buckets=_LATENCY_BUCKETS,
            labelnames=("request_class",),
            registry=self.registry,
        )
        self.inter_token_latency = Histogram(
            "sluice_engine_inter_token_latency_seconds",
            "Between tokens of a sequence",
            buckets=_LATENCY_BUCKETS,
            labelnames=("request_class",),
            registry=self.registry,
        )
        self.queue_wait = Histogram(
            "sluice_engine_queue_wait_seconds",
            "From arrival to the first step",
            buckets=_LATENCY_BUCKETS,
            labelnames=("request_class",),
            registry=self.registry,
        )
        self.cancel_to_free = Histogram(
            "sluice_engine_cancel_to_free_seconds",
            "From a cancel to its blocks being free",
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.step = Histogram(
            "sluice_engine_step_seconds", "One step", buckets=_LATENCY_BUCKETS, registry=self.registry
        )
        self.prompt_tokens = Counter(
            "sluice_engine_prompt_tokens", "Prompt tokens computed", registry=self.registry
        )
        self.generated_tokens = Counter(
            "sluice_engine_generated_tokens", "Tokens sampled", registry=self.registry
        )
        self.ended = Counter(
            "sluice_engine_requests_ended",
            "Requests that ran, by how they ended",
            labelnames=("reason",),
            registry=self.registry,
        )
        self.refused = Counter(
            "sluice_engine_requests_refused",
            "Requests that never ran, by reason",
            labelnames=("reason",),
            registry=self.registry,
        )
        self.running = Gauge(
            "sluice_engine_requests_running",
            "In the running set",
            labelnames=("request_class",),
            registry=self.registry,
        )
        self.waiting = Gauge(
            "sluice_engine_requests_waiting",
            "Waiting for room",
            labelnames=("request_class",),
            registry=self.registry,
        )
        self.kv_blocks = Gauge(
            "sluice_engine_kv_blocks", "Cache blocks", labelnames=("state",), registry=self.registry
        )
