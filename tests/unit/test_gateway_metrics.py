"""Labels that come from outside stay few."""

from prometheus_client import CollectorRegistry

from gateway.metrics import GatewayMetrics, LabelCap


def test_values_beyond_the_cap_are_folded() -> None:
    cap = LabelCap(2)
    assert [cap.fold(value) for value in ["a", "b", "c", "a", "c"]] == ["a", "b", "other", "a", "other"]


def test_what_is_counted_under_the_same_labels_is_one_number() -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    for kind in ("tokens", "tokens", "requests"):
        metrics.quota_rejected.labels(kind).inc()
    totals = [
        (sample.labels["kind"], sample.value)
        for family in metrics.quota_rejected.metric.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    ]
    assert totals == [("tokens", 2.0), ("requests", 1.0)]
