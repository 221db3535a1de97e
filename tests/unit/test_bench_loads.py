"""The named loads, the shapes of lengths, traces and tenants, by example."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, median, stdev
from typing import Any

import pytest

from deploy.bench.arrivals import Arrivals, arrival_times, spike, steady
from deploy.bench.draws import random_for
from deploy.bench.lengths import LengthLaw, LengthShape, lengths_of
from deploy.bench.resampling import PastRequest, resampled_load
from deploy.bench.scenarios import Scenario, Settings, open_load
from deploy.bench.tenants import parse_tenant
from deploy.bench.traces import TraceScale, TraceUnreadable, read_trace, trace_load
from deploy.bench.workload import Conversation, Tenant, closed_load

ACME, BETA = Tenant(name="acme"), Tenant(name="beta", weight=3)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = '{"timestamp": 1500, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]}\n'


def conversations(scenario: Scenario, **changes: Any) -> Sequence[Conversation]:
    values: dict[str, Any] = {"tenants": [ACME], "seed": 1, "rate": 10.0, "duration_seconds": 60.0}
    return open_load(scenario, Settings(**values | changes)).conversations


def median_prompt(scenario: Scenario, **changes: Any) -> float:
    return median(each.turns[0].num_new_tokens for each in conversations(scenario, **changes))


def median_output(scenario: Scenario, **changes: Any) -> float:
    return median(each.turns[0].num_output_tokens for each in conversations(scenario, **changes))


# --- scenarios ---------------------------------------------------------------------------------------------


def test_prompts_are_as_their_scenario_says() -> None:
    assert 8 * median_prompt(Scenario.SHORT_PROMPT) == pytest.approx(256, rel=0.2)
    assert median_prompt(Scenario.MIXED) == pytest.approx(256, rel=0.2)
    assert median_prompt(Scenario.LONG_PROMPT, max_model_len=100_000) == pytest.approx(1024, rel=0.2)


def test_answers_are_as_their_scenario_says() -> None:
    assert 8 * median_output(Scenario.SHORT_OUTPUT) == pytest.approx(64, rel=0.2)
    assert median_output(Scenario.LONG_OUTPUT) == pytest.approx(256, rel=0.2)


def test_lengths_are_scaled() -> None:
    assert median_prompt(Scenario.MIXED, length_scale=0.25) == pytest.approx(64, rel=0.2)


def test_a_spike_is_three_times_the_rate_in_the_middle_third() -> None:
    times = [each.at_seconds for each in conversations(Scenario.SPIKE, duration_seconds=300.0)]
    middle = sum(100 <= at < 200 for at in times)
    assert middle / (len(times) - middle) == pytest.approx(1.5, rel=0.1)


def test_some_clients_leave_and_most_stay() -> None:
    leaving = [each.turns[0].leaves_after_tokens is not None for each in conversations(Scenario.CANCEL)]
    assert mean(leaving) == pytest.approx(0.3, abs=0.05)
    assert not any(each.turns[0].leaves_after_tokens for each in conversations(Scenario.MIXED))


def test_agents_take_several_turns_and_think_between_them() -> None:
    num_turns = [len(each.turns) for each in conversations(Scenario.AGENT, length_scale=0.1)]
    assert set(num_turns) == {3, 4, 5, 6}
    first, second, *_ = conversations(Scenario.AGENT)[0].turns
    assert first.think_seconds == 0 < second.think_seconds


def test_tenants_have_their_part_of_the_load() -> None:
    names = [each.tenant.name for each in conversations(Scenario.MIXED, tenants=[ACME, BETA])]
    assert names.count("beta") / len(names) == pytest.approx(0.75, abs=0.05)


def test_another_seed_is_another_load() -> None:
    assert conversations(Scenario.MIXED) != conversations(Scenario.MIXED, seed=2)


def test_no_two_requests_of_a_closed_loop_share_a_prompt() -> None:
    load = closed_load([ACME, BETA], concurrency=2, num_requests=5, num_prompt_tokens=7, num_output_tokens=3)
    segments = [segment for each in load.conversations for segment in each.turns[0].new_segments]
    assert len({segment.name for segment in segments}) == 5
    assert [each.tenant.name for each in load.conversations] == ["acme", "beta"] * 2 + ["acme"]


# --- arrivals and lengths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("process", "variation"), [(Arrivals.POISSON, 1.0), (Arrivals.BURSTS, 3.0)])
def test_gaps_vary_as_the_process_says(process: Arrivals, variation: float) -> None:
    times = arrival_times(process, steady(10, 3_000), random_for(1, "test"))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert stdev(gaps) / mean(gaps) == pytest.approx(variation, rel=0.1)


def test_a_spike_has_five_thirds_of_a_steady_load() -> None:
    num_steady = len(arrival_times(Arrivals.POISSON, steady(5, 900), random_for(1, "test")))
    num_spike = len(arrival_times(Arrivals.POISSON, spike(5, 900), random_for(1, "test")))
    assert num_spike / num_steady == pytest.approx(5 / 3, rel=0.05)


@pytest.mark.parametrize(
    ("law", "published"),
    [
        (lengths_of(LengthShape.AZURE_CONVERSATION).prompt, {0.5: 1020, 0.9: 2734, 0.99: 4142}),
        (lengths_of(LengthShape.AZURE_CONVERSATION).output, {0.5: 129, 0.9: 424, 0.99: 601}),
        (lengths_of(LengthShape.AZURE_CODE).prompt, {0.5: 1469, 0.9: 5186, 0.99: 7436}),
        (lengths_of(LengthShape.AZURE_CODE).output, {0.5: 13, 0.9: 55, 0.99: 249}),
    ],
)
def test_azure_shapes_go_through_the_published_quantiles(
    law: LengthLaw, published: dict[float, float]
) -> None:
    for probability, length in published.items():
        assert law.quantile(probability) == pytest.approx(length)


def test_an_azure_conversation_is_never_longer_than_the_longest_seen() -> None:
    assert lengths_of(LengthShape.AZURE_CONVERSATION).prompt.quantile(1 - 1e-12) <= 14_050


# --- traces ------------------------------------------------------------------------------------------------


def test_both_formats_are_read_from_their_first_request_on() -> None:
    azure = read_trace(
        [AZURE, "2023-11-16 18:15:46.6805900,374,44\n", "2023-11-16 18:15:48.1805900,396,109\n"], "a.csv"
    )
    assert [(row.at_seconds, row.num_prompt_tokens, row.num_output_tokens) for row in azure] == [
        (0.0, 374, 44),
        (1.5, 396, 109),
    ]
    [mooncake] = read_trace([MOONCAKE], "m.jsonl")
    assert (mooncake.at_seconds, mooncake.num_prompt_tokens, mooncake.hash_ids) == (0.0, 600, (0, 7))


def test_rows_out_of_order_are_sorted() -> None:
    lines = [AZURE, "2023-11-16 18:15:48,1,1\n", "2023-11-16 18:15:46,2,1\n"]
    assert [row.num_prompt_tokens for row in read_trace(lines, "a.csv")] == [2, 1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "t is empty"),
        (["a,b\n"], "t line 1: neither a JSON object nor the header"),
        ([AZURE], "t has a header and no rows"),
        ([AZURE, "yesterday,1,1\n"], "t line 2: "),
        ([AZURE, "2023-11-16 18:15:48,1,1\n", "\n", "2023-11-16 18:15:48,1\n"], "t line 4: "),
        ([AZURE, "2023-11-16 18:15:48,1,-1\n"], "t line 2: -1 is no count"),
        ([MOONCAKE, "{}\n"], "t line 2: Object missing required field"),
        ([MOONCAKE, "oops\n"], "t line 2: JSON is malformed"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(lines: list[str], message: str) -> None:
    with pytest.raises(TraceUnreadable, match=message):
        read_trace(lines, "t")


def test_a_trace_is_cut_to_the_duration_after_its_time_is_scaled() -> None:
    rows = read_trace([AZURE, *(f"2023-11-16 18:15:{second:02d},8,1\n" for second in range(10))], "a.csv")
    load = trace_load(
        rows,
        name="a",
        scale=TraceScale(time=0.5),
        duration_seconds=2,
        tenants=[ACME],
        seed=1,
        max_model_len=100,
    )
    assert [each.at_seconds for each in load.conversations] == [0, 0.5, 1, 1.5]


# --- our own usage -----------------------------------------------------------------------------------------


def drawn(past: list[PastRequest], **changes: Any) -> Sequence[Conversation]:
    values: dict[str, Any] = {
        "tenants": [ACME],
        "seed": 1,
        "rate": None,
        "duration_seconds": 100.0,
        "length_scale": 1.0,
        "max_model_len": 1_000,
    }
    return resampled_load(past, **values | changes).conversations


def past_request(**changes: Any) -> PastRequest:
    values: dict[str, Any] = {
        "at_seconds": 0.0,
        "tenant_name": "acme",
        "num_prompt_tokens": 100,
        "num_cached_tokens": 40,
        "num_output_tokens": 10,
        "is_cancelled": False,
        "is_offline": False,
    }
    return PastRequest(**values | changes)


def test_usage_keeps_its_own_rate_unless_another_is_given() -> None:
    past = [past_request(at_seconds=2.0 * number) for number in range(50)]
    assert len(drawn(past)) == pytest.approx(50, abs=1)
    assert len(drawn(past, rate=2.0)) == pytest.approx(200, abs=1)


def test_who_left_leaves_again_after_as_many_tokens() -> None:
    [turn] = drawn([past_request(is_cancelled=True, at_seconds=at) for at in (0, 60)])[0].turns
    assert (turn.leaves_after_tokens, turn.num_output_tokens) == (10, 20)


def test_what_was_cached_is_shared_within_the_tenant_only() -> None:
    past = [past_request(at_seconds=number, tenant_name="ab"[number % 2]) for number in range(20)]
    shared = {
        (each.tenant.name, each.turns[0].new_segments[0].name, each.turns[0].new_segments[0].num_tokens)
        for each in drawn(past)
    }
    assert shared == {("a", "tenant a", 40), ("b", "tenant b", 40)}


def test_a_tenants_own_key_is_used_where_it_is_given() -> None:
    past = [past_request(at_seconds=number, tenant_name=("acme", "beta")[number % 2]) for number in range(20)]
    keys = {
        each.tenant.name: each.tenant.key
        for each in drawn(past, tenants=[Tenant(name="other", key="k"), Tenant(name="beta", key="b")])
    }
    assert keys == {"acme": "k", "beta": "b"}


# --- tenants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tenant"),
    [
        ("acme=sk-1", Tenant(name="acme", key="sk-1")),
        ("acme=sk-1:2.5", Tenant(name="acme", key="sk-1", weight=2.5)),
        ("acme=a=b", Tenant(name="acme", key="a=b")),
    ],
)
def test_a_tenant_is_a_name_a_key_and_perhaps_a_weight(text: str, tenant: Tenant) -> None:
    assert parse_tenant(text) == tenant


@pytest.mark.parametrize(
    "text", ["acme", "=key", "acme=", "acme=sk-secret:0", "acme=sk-secret:x", "a=sk-secret:nan"]
)
def test_a_tenant_written_wrongly_is_refused_without_its_key(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME=KEY") as refused:
        parse_tenant(text)
    assert "secret" not in str(refused.value)
