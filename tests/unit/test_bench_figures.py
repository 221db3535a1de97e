"""The figures of a bench from hand-made records."""

import pytest

from deploy.bench.figures import distribution, figures_of, jain_index, percentile
from deploy.bench.records import RequestRecord
from deploy.bench.slo import Slo, parse_slo
from tests.builders.bench_records import request_record

ACME = {"acme": 1.0}


def test_what_a_record_says_of_itself() -> None:
    record = request_record(due_at=0.75, num_completion_tokens=5, token_times_at=(1.5, 1.6, 1.9))
    assert record.ttft_seconds == 0.5
    assert record.gaps_seconds == pytest.approx([0.1, 0.3])
    assert record.jitter_seconds == pytest.approx(0.3)
    assert record.tpot_seconds == pytest.approx(0.4 / 4), "by tokens, not by events: one may hold several"
    assert record.e2e_seconds == 0.75
    assert record.late_seconds == 0.25


def test_one_token_has_no_time_per_output_token() -> None:
    record = request_record(num_completion_tokens=1, token_times_at=(1.5,))
    assert record.tpot_seconds is None
    assert record.jitter_seconds is None


def test_a_percentile_between_two_values_is_between_them() -> None:
    assert percentile([10.0, 20.0], 50) == 15
    assert percentile([7.0], 99) == 7


def test_a_distribution_is_in_milliseconds() -> None:
    seen = distribution([0.001, 0.003])
    assert seen is not None
    assert (seen.count, seen.mean, seen.p50, seen.max) == (2, 2, 2, 3)
    assert distribution([]) is None


def test_rates_are_over_the_time_from_first_start_to_last_end() -> None:
    records = [request_record(), request_record(started_at=2.0, ended_at=3.0, token_times_at=(2.5, 2.6, 2.7))]
    figures = figures_of(records, slo=Slo(), weights=ACME)
    assert figures.seconds == 2
    assert figures.output_tokens_per_second == 3
    assert figures.total_tokens_per_second == 13
    assert figures.requests_per_second == 1


@pytest.mark.parametrize(("planned_seconds", "seconds"), [(4.0, 4.0), (0.5, 1.75)])
def test_rates_of_an_open_load_are_over_its_duration_and_what_came_after(
    planned_seconds: float, seconds: float
) -> None:
    figures = figures_of([request_record()], slo=Slo(), weights=ACME, planned_seconds=planned_seconds)
    assert figures.seconds == seconds
    assert figures.output_tokens_per_second == pytest.approx(3 / seconds)


@pytest.mark.parametrize("change", [{"error": "queue_full"}, {"is_cancelled": True}])
def test_latencies_are_of_complete_requests_only(change: dict[str, object]) -> None:
    figures = figures_of([request_record(**change)], slo=Slo(), weights=ACME)
    assert set(figures.latencies_ms) == {"late"}
    assert figures.requests_per_second == 0
    assert figures.num_completion_tokens == 3


def test_errors_are_counted_by_reason_most_frequent_first() -> None:
    reasons = ["http_500", "queue_full", "queue_full", None]
    records = [request_record(error=reason) for reason in reasons]
    figures = figures_of(records, slo=Slo(), weights=ACME)
    assert list(figures.errors.items()) == [("queue_full", 2), ("http_500", 1)]


def test_who_left_as_planned_does_not_spoil_the_share_within_the_slo() -> None:
    records = [request_record(), request_record(is_cancelled=True), request_record(error="timeout")]
    figures = figures_of(records, slo=parse_slo("ttft=1s"), weights=ACME)
    assert figures.share_within_slo == 0.5


def test_without_an_slo_no_share_is_claimed() -> None:
    assert figures_of([request_record()], slo=Slo(), weights=ACME).share_within_slo is None


def test_a_tenant_that_was_never_served_still_has_its_row() -> None:
    figures = figures_of([request_record()], slo=Slo(), weights={"acme": 1.0, "beta": 1.0})
    assert [(each.name, each.num_requests) for each in figures.tenants] == [("acme", 1), ("beta", 0)]
    assert figures.jain_index == 0.5


def test_fairness_is_judged_by_weight() -> None:
    records = [request_record(), *[request_record(tenant="beta")] * 3]
    figures = figures_of(records, slo=Slo(), weights={"acme": 1.0, "beta": 3.0})
    assert figures.jain_index == pytest.approx(1)


def test_jains_index_needs_two_and_something() -> None:
    assert jain_index([5.0]) is None
    assert jain_index([0.0, 0.0]) is None
    assert jain_index([1.0, 0.0]) == 0.5


def test_cached_tokens_are_absent_where_the_server_does_not_tell() -> None:
    assert figures_of([request_record()], slo=Slo(), weights=ACME).num_cached_tokens is None
    told = [request_record(num_cached_tokens=4), request_record()]
    assert figures_of(told, slo=Slo(), weights=ACME).num_cached_tokens == 4


def test_nothing_at_all_is_no_division_by_zero() -> None:
    figures = figures_of([], slo=Slo(), weights=ACME)
    assert figures.output_tokens_per_second == 0
    assert figures.latencies_ms == {}


# --- the SLO -----------------------------------------------------------------------------------------------


def test_an_slo_is_read_in_both_units() -> None:
    assert parse_slo("ttft=1.5s, itl=120ms").bounds_ms == {"ttft": 1_500, "itl": 120}


@pytest.mark.parametrize("text", ["", "ttft", "ttft=1500", "speed=1ms", "ttft=-1ms", "ttft=1ms;itl=2ms"])
def test_a_wrong_slo_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"MEASURE=TIME such as ttft=1500ms"):
        parse_slo(text)


@pytest.mark.parametrize(
    ("slo", "is_met"),
    [
        ("ttft=500ms", True),
        ("ttft=499ms", False),
        ("itl=110ms", True),
        ("itl=90ms", False),
        ("tpot=90ms", False),
        ("e2e=750ms", True),
        ("e2e=700ms", False),
        ("jitter=90ms", False),
        ("ttft=1s,jitter=90ms", False),
    ],
)
def test_each_measure_binds(slo: str, is_met: bool) -> None:
    assert parse_slo(slo).is_met_by(request_record()) is is_met


def test_one_late_token_of_many_keeps_the_itl_and_breaks_the_jitter() -> None:
    record: RequestRecord = request_record(
        token_times_at=[1 + 0.01 * number for number in range(100)] + [5.0], num_completion_tokens=101
    )
    assert parse_slo("itl=50ms").is_met_by(record)
    assert not parse_slo("jitter=50ms").is_met_by(record)
