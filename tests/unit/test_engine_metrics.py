"""What a scrape of the engine says: rows by class, size, tenant and reason, counted once each."""

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram
from prometheus_client.registry import Collector

import engine.metrics
from engine.core.figures import Figures, FreeCause
from engine.core.outcome import Broken, Ended, Refusal, RefusalReason, Refused, Sampled
from engine.core.sequence import EndReason, Sequence, SequenceClass, WaitReason
from engine.core.service import TenantLoad
from engine.core.slo import SloMonitor, SloTargets
from engine.core.step import PlannedRow, SamplingParams, StepPlan
from engine.metrics import Metrics, TalliedHistogram
from engine.protocol import AdmissionReason
from engine.telemetry import ADMITTED, Telemetry, prompt_size
from engine.tenant_labels import MAX_TENANT_LABELS, OTHER, TenantLabels
from tests.builders.sequences import run_until_idle, scheduler, sequence

INTERACTIVE = SequenceClass.INTERACTIVE


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(SloMonitor(SloTargets(), now=0.0))


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    """One row of a scrape, or None when there is none."""
    return telemetry.metrics.registry.get_sample_value(f"sluice_engine_{name}", labels)


def started(tenant: str = "acme", *, num_prompt_tokens: int = 4, offline: bool = False) -> Sequence:
    """A sequence that arrived at 0, had its first step at 1 and its first token at 3."""
    begun = sequence(num_prompt_tokens=num_prompt_tokens, offline=offline)
    begun.tenant_name, begun.scheduled_at, begun.first_token_at = tenant, 1.0, 3.0
    begun.token_ids.append(7)
    return begun


def decode_row(id: str) -> PlannedRow:
    return PlannedRow(id, (7,), 4, (0,), SamplingParams())


def prefill_row(id: str, num_tokens: int) -> PlannedRow:
    return PlannedRow(id, tuple(range(num_tokens)), 0, (0,), None)


# --- requests ------------------------------------------------------------------------------------------


def test_a_first_token_counts_its_wait_its_queueing_and_its_prompt(telemetry: Telemetry) -> None:
    begun = started()
    begun.num_cached_tokens = 3
    telemetry.record([Sampled(begun, (7,), 3.0, True)], now=3.0)
    by_class = {"request_class": "interactive"}
    assert value(telemetry, "time_to_first_token_seconds_sum", prompt_size="short", **by_class) == 3.0
    assert value(telemetry, "tenant_time_to_first_token_seconds_sum", tenant="acme", **by_class) == 3.0
    assert value(telemetry, "request_queue_time_seconds_sum", **by_class) == 1.0
    assert value(telemetry, "tenant_queue_time_seconds_sum", tenant="acme", **by_class) == 1.0
    assert value(telemetry, "prompt_tokens_total", tenant="acme") == 4
    assert value(telemetry, "prompt_tokens_cached_total", tenant="acme") == 3
    assert value(telemetry, "generation_tokens_total", tenant="acme") == 1


def test_equal_gaps_of_one_step_are_counted_each(telemetry: Telemetry) -> None:
    outcomes = [Sampled(started(), (7,), 0.02, False) for _ in range(5)]
    telemetry.record([*outcomes, Sampled(started(), (7,), 0.3, False)], now=4.0)
    labels = {"request_class": "interactive", "prompt_size": "short"}
    assert value(telemetry, "inter_token_latency_seconds_bucket", le="0.025", **labels) == 5
    assert value(telemetry, "inter_token_latency_seconds_bucket", le="0.3", **labels) == 6
    assert value(telemetry, "inter_token_latency_seconds_count", **labels) == 6
    assert value(telemetry, "inter_token_latency_seconds_sum", **labels) == pytest.approx(0.4)
    assert telemetry.monitor.window(4.0).itl.num_samples == 6


def test_what_long_prompts_do_to_short_ones_shows(telemetry: Telemetry) -> None:
    short, long = started(num_prompt_tokens=512), started(num_prompt_tokens=4097)
    telemetry.record([Sampled(short, (7,), 2.0, False), Sampled(long, (7,), 0.1, False)], now=4.0)
    name, by_class = "inter_token_latency_seconds_sum", {"request_class": "interactive"}
    assert value(telemetry, name, prompt_size="short", **by_class) == 2.0
    assert value(telemetry, name, prompt_size="long", **by_class) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "size"),
    [(1, "short"), (512, "short"), (513, "medium"), (4096, "medium"), (4097, "long")],
)
def test_prompts_have_three_sizes(num_prompt_tokens: int, size: str) -> None:
    assert prompt_size(num_prompt_tokens) == size


def test_an_end_tells_the_times_of_the_request(telemetry: Telemetry) -> None:
    over = started(offline=True)
    over.token_ids.extend((8, 9))
    over.longest_gap_seconds = 0.6
    telemetry.record([Ended(over, EndReason.STOP)], now=4.0)
    by_class = {"request_class": "offline"}
    by_size = {**by_class, "prompt_size": "short"}
    assert value(telemetry, "request_success_total", finished_reason="stop", tenant="acme", **by_class) == 1
    assert value(telemetry, "e2e_request_latency_seconds_sum", **by_size) == 4.0
    assert value(telemetry, "request_inference_time_seconds_sum", **by_class) == 3.0
    assert value(telemetry, "request_prefill_time_seconds_sum", **by_class) == 2.0
    assert value(telemetry, "request_decode_time_seconds_sum", **by_class) == 1.0
    assert value(telemetry, "request_time_per_output_token_seconds_sum", **by_class) == 0.5
    assert value(telemetry, "request_max_inter_token_latency_seconds_sum", **by_size) == 0.6
    assert value(telemetry, "request_prompt_tokens_sum", **by_class) == 4
    assert value(telemetry, "request_generation_tokens_sum", **by_class) == 3


def test_an_answer_of_one_token_has_no_time_per_token(telemetry: Telemetry) -> None:
    telemetry.record([Ended(started(), EndReason.LENGTH)], now=4.0)
    name = "request_time_per_output_token_seconds_count"
    assert value(telemetry, name, request_class="interactive") is None


def test_one_that_never_ran_has_no_times(telemetry: Telemetry) -> None:
    telemetry.record([Ended(sequence(), EndReason.CANCELLED)], now=4.0)
    assert value(telemetry, "request_inference_time_seconds_count", request_class="interactive") is None


@pytest.mark.parametrize("has_token", [True, False])
def test_whoever_had_a_turn_is_admitted_once(telemetry: Telemetry, has_token: bool) -> None:
    begun = started()
    if has_token:
        telemetry.record([Sampled(begun, (7,), 3.0, True)], now=3.0)
    else:
        begun.first_token_at = None
    telemetry.record([Broken(begun, "a NaN")], now=4.0)
    labels = {"request_class": "interactive", "tenant": "acme"}
    assert value(telemetry, "admission_outcomes_total", reason="admitted", **labels) == 1
    assert value(telemetry, "request_success_total", finished_reason="error", **labels) == 1


@pytest.mark.parametrize("reason", RefusalReason)
def test_a_refusal_has_the_same_reason_here_and_in_the_response(
    telemetry: Telemetry, reason: RefusalReason
) -> None:
    telemetry.record([Refused(sequence(), Refusal(reason, "no"))], now=1.0)
    told = AdmissionReason(reason.value).value
    labels = {"request_class": "interactive", "tenant": ""}
    assert value(telemetry, "admission_outcomes_total", reason=told, **labels) == 1


def test_admitted_is_no_reason_to_refuse() -> None:
    assert ADMITTED not in {reason.value for reason in AdmissionReason}


def test_a_waiting_timeout_tells_what_was_waited_for(telemetry: Telemetry) -> None:
    refusal = Refusal(RefusalReason.WAITING_TIMEOUT, "no room", wait_reason=WaitReason.KV_BLOCKS)
    telemetry.record([Refused(sequence(offline=True), refusal)], now=1.0)
    assert value(telemetry, "waiting_timeouts_total", wait_reason="kv_blocks", request_class="offline") == 1


def test_whoever_is_over_is_forgotten(telemetry: Telemetry) -> None:
    begun = started()
    telemetry.record([Sampled(begun, (7,), 3.0, True)], now=3.0)
    num_references = sys.getrefcount(begun)
    telemetry.record([Ended(begun, EndReason.STOP)], now=4.0)
    assert sys.getrefcount(begun) < num_references


# --- steps ---------------------------------------------------------------------------------------------


def test_a_step_tells_its_tokens_by_kind_and_what_it_used_of_its_budget(telemetry: Telemetry) -> None:
    plan = StepPlan(
        step_id=1,
        rows=(decode_row("a"), decode_row("b"), prefill_row("c", 6)),
        token_budget=16,
        num_decode_rows=2,
        num_recomputed_tokens=4,
    )
    telemetry.step_done(plan, seconds=0.02, now=1.0)
    assert value(telemetry, "iteration_tokens_total_sum") == 8
    assert value(telemetry, "iteration_tokens_by_kind_sum", kind="decode") == 2
    assert value(telemetry, "iteration_tokens_by_kind_sum", kind="prefill") == 2
    assert value(telemetry, "iteration_tokens_by_kind_sum", kind="recompute") == 4
    assert value(telemetry, "iteration_token_budget_used_ratio_sum") == 0.5
    assert value(telemetry, "iteration_token_budget") == 16
    assert telemetry.throughput.per_second(1.0) == (6 / 5, 2 / 5)


def test_what_the_scheduler_counted_is_published_once(telemetry: Telemetry) -> None:
    figures = Figures()
    figures.num_preemptions[SequenceClass.OFFLINE] = 2
    figures.num_blocks_freed[FreeCause.CANCELLED] = 9
    figures.num_recomputed_tokens = 30
    telemetry.figures(figures, num_evicted_blocks=5)
    figures.num_preemptions[SequenceClass.OFFLINE] = 3
    telemetry.figures(figures, num_evicted_blocks=6)
    assert value(telemetry, "num_preemptions_total", request_class="offline") == 3
    assert value(telemetry, "num_preemptions_total", request_class="interactive") == 0
    assert value(telemetry, "kv_blocks_freed_total", cause="cancelled") == 9
    assert value(telemetry, "kv_blocks_evicted_total") == 6
    assert value(telemetry, "recomputed_tokens_total") == 30


def test_what_is_recomputed_after_preemption_is_no_prefix_hit(telemetry: Telemetry) -> None:
    figures = Figures(num_prefix_queried_tokens=100, num_prefix_hit_tokens=10)
    telemetry.figures(figures, num_evicted_blocks=0)
    plan = StepPlan(step_id=1, rows=(prefill_row("a", 64),), num_recomputed_tokens=64)
    telemetry.step_done(plan, seconds=0.02, now=1.0)
    figures.num_recomputed_tokens = 64
    telemetry.figures(figures, num_evicted_blocks=0)
    assert value(telemetry, "prefix_cache_queries_total") == 100
    assert value(telemetry, "prefix_cache_hits_total") == 10


def test_texts_that_share_nothing_have_no_hits_however_often_they_are_preempted(telemetry: Telemetry) -> None:
    small = scheduler(num_blocks=12, kv_cache_utilization_limit=1.0)
    for number, max_tokens in enumerate([2] * 20 + [24] * 3):  # short answers, then longer ones than expected
        other = sequence(str(number), num_prompt_tokens=8, max_tokens=max_tokens)
        other.cache_namespace = bytes([1 + number])
        assert small.submit(other, now=0.0) is None
    run_until_idle(small)
    telemetry.figures(small.figures, num_evicted_blocks=small.kv_cache.num_evicted_blocks)
    assert value(telemetry, "num_preemptions_total", request_class="interactive") != 0
    assert value(telemetry, "prefix_cache_queries_total") == 23 * 8
    assert value(telemetry, "prefix_cache_hits_total") == 0


def test_blocks_that_are_only_cached_are_not_in_use(telemetry: Telemetry) -> None:
    telemetry.blocks(used=20, free=30, cached=50, now=1.0)
    assert value(telemetry, "kv_cache_usage_perc") == 0.2
    assert value(telemetry, "kv_blocks", state="cached") == 50
    assert telemetry.monitor.window(1.0).kv_cache_utilization == 0.2


def test_the_guardrails_level_shows(telemetry: Telemetry) -> None:
    telemetry.guardrail_level(3)
    assert value(telemetry, "guardrail_level") == 3


# --- tenants -------------------------------------------------------------------------------------------


def test_waiting_is_counted_by_tenant_class_and_reason(telemetry: Telemetry) -> None:
    telemetry.waiting({("acme", INTERACTIVE, WaitReason.KV_BLOCKS): 4})
    labels = {"tenant": "acme", "request_class": "interactive"}
    assert value(telemetry, "num_requests_waiting_by_reason", reason="kv_blocks", **labels) == 4


def test_a_tenant_that_waits_no_more_falls_to_0(telemetry: Telemetry) -> None:
    telemetry.waiting({("acme", INTERACTIVE, WaitReason.KV_BLOCKS): 4})
    telemetry.waiting({("bolt", INTERACTIVE, WaitReason.KV_BLOCKS): 1})
    labels = {"tenant": "acme", "request_class": "interactive"}
    assert value(telemetry, "num_requests_waiting_by_reason", reason="kv_blocks", **labels) == 0


def test_a_tenant_that_runs_no_more_falls_to_0(telemetry: Telemetry) -> None:
    telemetry.services([TenantLoad("1", "acme", 1.0, 2, 0, 10.0)], now=1.0)
    assert value(telemetry, "tenant_requests_running", tenant="acme") == 2
    telemetry.services([], now=2.0)
    assert value(telemetry, "tenant_requests_running", tenant="acme") == 0


def test_service_is_counted_by_tenant(telemetry: Telemetry) -> None:
    telemetry.services([TenantLoad("1", "acme", 1.0, 2, 0, 10.0)], now=1.0)
    telemetry.services([TenantLoad("1", "acme", 1.0, 2, 0, 25.0)], now=2.0)
    assert value(telemetry, "tenant_service_tokens_total", tenant="acme") == 25


def test_fairness_is_of_service_by_weight(telemetry: Telemetry) -> None:
    telemetry.services(
        [TenantLoad("1", "acme", 1.0, 1, 0, 10.0), TenantLoad("2", "bolt", 3.0, 1, 0, 30.0)], now=1.0
    )
    assert value(telemetry, "fairness_index") == pytest.approx(1.0)
    assert telemetry.fairness.index == pytest.approx(1.0)
    assert telemetry.fairness.rates == {"1": 1.0, "2": 3.0}


def test_fairness_of_nobody_is_no_number(telemetry: Telemetry) -> None:
    shown = value(telemetry, "fairness_index")
    assert shown is not None
    assert math.isnan(shown)


def test_names_beyond_the_most_share_one_label() -> None:
    labels = TenantLabels(most=2)
    assert [labels.fold(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_a_thousand_tenants_make_no_thousand_rows(telemetry: Telemetry) -> None:
    for number in range(1000):
        begun = started(f"tenant-{number}")
        refused = Refused(begun, Refusal(RefusalReason.RATE_SHARE, "no"))
        told = [Sampled(begun, (7,), 3.0, True), Sampled(begun, (7,), 0.1, False), refused]
        telemetry.record([*told, Ended(begun, EndReason.STOP)], now=4.0)
    names = [f"tenant-{number}" for number in range(1000)]
    telemetry.waiting({(name, INTERACTIVE, WaitReason.KV_BLOCKS): 1 for name in names})
    telemetry.services([TenantLoad(name, name, 1.0, 1, 0, 1.0) for name in names], now=1.0)
    told_apart = {
        sample.labels["tenant"]
        for family in telemetry.metrics.registry.collect()
        for sample in family.samples
        if "tenant" in sample.labels
    }
    assert len(told_apart) == MAX_TENANT_LABELS + 1
    others = {"tenant": OTHER, "request_class": "interactive", "reason": "kv_blocks"}
    assert value(telemetry, "num_requests_waiting_by_reason", **others) == 1000 - MAX_TENANT_LABELS


# --- the page ------------------------------------------------------------------------------------------


def families(metrics: Metrics) -> Iterator[tuple[str, str]]:
    for family in metrics.registry.collect():
        yield family.name + ("_total" if family.type == "counter" else ""), family.type


def test_the_table_of_metrics_names_them_all_and_no_others() -> None:
    table = Path(engine.metrics.__file__).with_name("METRICS.md").read_text()
    described = re.findall(r"^\| `(sluice_engine_\w+)` \| (\w+) ", table, re.MULTILINE)
    assert sorted(described) == sorted(families(Metrics()))


@given(st.lists(st.sampled_from((0.0, 0.5, 1.0, 1.5, 2.0, 9.0))))
def test_a_tallied_histogram_reads_as_the_librarys_own(values: list[float]) -> None:
    tallied = TalliedHistogram("name", "text", ("label",), buckets=(1, 2))
    own = Histogram("name", "text", ("label",), buckets=(1, 2), registry=None)
    tally, row = tallied.labels("a"), own.labels("a")
    for each in values:
        row.observe(each)
    for each, count in Counter(values).items():
        tally.observe(each, count)
    assert samples(tallied) == samples(own)


def samples(histogram: Collector) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(f"{key}={sample.labels[key]}" for key in sorted(sample.labels))): sample.value
        for family in histogram.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
