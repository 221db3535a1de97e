"""What holds for every load that the bench can make, whatever its settings."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.arrivals import Arrivals, Phase, arrival_times
from deploy.bench.draws import random_for
from deploy.bench.lengths import LengthShape, draw, fitted, lengths_of
from deploy.bench.prompts import PromptMaker
from deploy.bench.resampling import PastRequest, resampled_load
from deploy.bench.scenarios import Scenario, Settings, open_load
from deploy.bench.traces import BLOCK_TOKENS, TraceRow, TraceScale, trace_load
from deploy.bench.workload import Segment, Tenant

UNHURRIED = settings(deadline=None)  # a busy machine fails no test
HEAVY = settings(deadline=None, max_examples=50)
ACME, BETA = Tenant(name="acme", key="a"), Tenant(name="beta", key="b", weight=3)
SEEDS = st.integers(0, 1_000)
PHASES = st.lists(
    st.builds(Phase, seconds=st.floats(0.1, 20), rate=st.floats(0.1, 30)), min_size=1, max_size=4
)
SETTINGS = st.builds(
    Settings,
    tenants=st.sampled_from([(ACME,), (ACME, BETA)]),
    seed=SEEDS,
    rate=st.floats(0.1, 10),
    duration_seconds=st.floats(0.5, 20),
    arrivals=st.sampled_from(Arrivals),
    lengths=st.sampled_from(LengthShape),
    length_scale=st.floats(0.001, 4),
    max_model_len=st.integers(2, 8192),
)
ROWS = st.lists(
    st.builds(
        TraceRow,
        at_seconds=st.floats(0, 100),
        num_prompt_tokens=st.integers(0, 3_000),
        num_output_tokens=st.integers(0, 500),
        hash_ids=st.lists(st.integers(0, 3), max_size=6).map(tuple),
    ),
    max_size=8,
)


@UNHURRIED
@given(process=st.sampled_from(Arrivals), phases=PHASES, seed=SEEDS)
def test_arrivals_are_in_order_and_within_the_run(process: Arrivals, phases: list[Phase], seed: int) -> None:
    times = arrival_times(process, phases, random_for(seed, "test"))
    assert times == sorted(times)
    assert all(0 <= at <= sum(phase.seconds for phase in phases) + 1e-9 for at in times)


@UNHURRIED
@given(phases=PHASES, seed=SEEDS)
def test_phases_move_arrivals_and_neither_add_nor_drop_any(phases: list[Phase], seed: int) -> None:
    mean_arrivals = sum(phase.seconds * phase.rate for phase in phases)
    in_phases = arrival_times(Arrivals.POISSON, phases, random_for(seed, "test"))
    in_one = arrival_times(
        Arrivals.POISSON, [Phase(seconds=mean_arrivals, rate=1.0)], random_for(seed, "test")
    )
    assert abs(len(in_phases) - len(in_one)) <= 1, "rounding may move the last over the end"


@HEAVY
@given(scenario=st.sampled_from(Scenario), load=SETTINGS)
def test_equal_settings_make_equal_loads(scenario: Scenario, load: Settings) -> None:
    assert open_load(scenario, load) == open_load(scenario, load)


@HEAVY
@given(scenario=st.sampled_from(Scenario), load=SETTINGS)
def test_keys_and_tenants_change_no_request(scenario: Scenario, load: Settings) -> None:
    other = open_load(scenario, replace(load, tenants=[Tenant(name="a peer's")]))
    assert [(each.at_seconds, each.turns) for each in open_load(scenario, load).conversations] == [
        (each.at_seconds, each.turns) for each in other.conversations
    ]


@HEAVY
@given(scenario=st.sampled_from(Scenario), load=SETTINGS)
def test_whatever_is_asked_fits_the_model(scenario: Scenario, load: Settings) -> None:
    for conversation in open_load(scenario, load).conversations:
        num_tokens = 0
        for turn in conversation.turns:
            assert turn.num_new_tokens >= 1
            assert turn.num_output_tokens >= 1
            num_tokens += turn.num_new_tokens + turn.num_output_tokens
            assert turn.leaves_after_tokens is None or 1 <= turn.leaves_after_tokens <= turn.num_output_tokens
        assert num_tokens <= load.max_model_len


@UNHURRIED
@given(prompt=st.floats(0, 1e6), output=st.floats(0, 1e6), max_model_len=st.integers(2, 100_000))
def test_fitted_sizes_are_at_least_one_and_fit(prompt: float, output: float, max_model_len: int) -> None:
    sizes = fitted(prompt, output, max_model_len)
    assert min(sizes.num_prompt_tokens, sizes.num_output_tokens) >= 1
    assert sizes.num_prompt_tokens + sizes.num_output_tokens <= max_model_len


@UNHURRIED
@given(shape=st.sampled_from(LengthShape), first=st.floats(1e-6, 0.999), second=st.floats(1e-6, 0.999))
def test_a_higher_quantile_is_no_shorter(shape: LengthShape, first: float, second: float) -> None:
    for law in (lengths_of(shape).prompt, lengths_of(shape).output):
        low, high = sorted((first, second))
        assert law.quantile(low) <= law.quantile(high)


@UNHURRIED
@given(shape=st.sampled_from(LengthShape), scale=st.floats(1e-6, 10), seed=SEEDS)
def test_no_length_is_zero(shape: LengthShape, scale: float, seed: int) -> None:
    assert draw(lengths_of(shape).output, scale, random_for(seed, "test")) >= 1


# --- prompts -----------------------------------------------------------------------------------------------


@UNHURRIED
@given(seed=SEEDS, vocab_size=st.integers(8, 60_000), length=st.integers(1, 200))
def test_ids_are_as_many_as_asked_and_within_the_vocabulary(seed: int, vocab_size: int, length: int) -> None:
    ids = PromptMaker(seed=seed, vocab_size=vocab_size).ids([Segment(name="a", num_tokens=length)])
    assert len(ids) == length
    assert all(0 < token_id < vocab_size for token_id in ids)


@UNHURRIED
@given(seed=SEEDS, short=st.integers(1, 100), more=st.integers(0, 100))
def test_a_longer_segment_of_one_name_begins_with_the_shorter(seed: int, short: int, more: int) -> None:
    maker = PromptMaker(seed=seed)
    longer = maker.ids([Segment(name="a", num_tokens=short + more)])
    assert longer[:short] == maker.ids([Segment(name="a", num_tokens=short)])


@UNHURRIED
@given(seed=SEEDS, length=st.integers(1, 100))
def test_text_has_a_word_for_each_token(seed: int, length: int) -> None:
    text = PromptMaker(seed=seed).text([Segment(name="a", num_tokens=length)])
    assert len(text.split()) == length


# --- traces and usage --------------------------------------------------------------------------------------


def replayed(rows: list[TraceRow], **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "name": "trace",
        "scale": TraceScale(),
        "duration_seconds": None,
        "tenants": [ACME, BETA],
        "seed": 1,
        "max_model_len": 100_000,
    }
    return trace_load(rows, **arguments | changes)


@UNHURRIED
@given(rows=ROWS, length=st.floats(0.002, 2), time=st.floats(0.1, 10))
def test_a_replayed_trace_keeps_every_row_at_its_scaled_time(
    rows: list[TraceRow], length: float, time: float
) -> None:
    load = replayed(rows, scale=TraceScale(length=length, time=time))
    assert [each.at_seconds for each in load.conversations] == [row.at_seconds * time for row in rows]
    for row, each in zip(rows, load.conversations, strict=True):
        assert each.turns[0].num_new_tokens == max(1, round(row.num_prompt_tokens * length))


@UNHURRIED
@given(rows=ROWS, length=st.floats(0.002, 2))
def test_equal_hash_ids_are_equal_prefixes(rows: list[TraceRow], length: float) -> None:
    maker = PromptMaker(seed=1)
    load = replayed(rows, scale=TraceScale(length=length))
    prompts = [maker.ids(each.turns[0].new_segments) for each in load.conversations]
    for row, prompt in zip(rows, prompts, strict=True):
        for other_row, other_prompt in zip(rows, prompts, strict=True):
            num_equal = shared(row.hash_ids, other_row.hash_ids)
            num_tokens = min(round(num_equal * BLOCK_TOKENS * length), len(prompt), len(other_prompt))
            assert prompt[:num_tokens] == other_prompt[:num_tokens]


def shared(ours: tuple[int, ...], theirs: tuple[int, ...]) -> int:
    """How many ids from the start are the same."""
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (one, two) in enumerate(pairs) if one != two), min(len(ours), len(theirs)))


@UNHURRIED
@given(
    gaps=st.lists(st.floats(0.01, 5), min_size=1, max_size=30),
    seed=SEEDS,
    rate=st.none() | st.floats(0.5, 5),
    duration=st.floats(0.1, 20),
)
def test_what_is_drawn_from_usage_comes_from_it_and_fits_the_duration(
    gaps: list[float], seed: int, rate: float | None, duration: float
) -> None:
    past = [past_request(at_seconds=sum(gaps[:number]), size=number + 1) for number in range(len(gaps) + 1)]
    load = resampled_load(
        past, tenants=[BETA], seed=seed, rate=rate, duration_seconds=duration, length_scale=1.0,
        max_model_len=4096,
    )  # fmt: skip
    times = [each.at_seconds for each in load.conversations]
    assert times == sorted(times)
    assert all(at < duration for at in times)
    sizes = {request.num_prompt_tokens for request in past}
    assert all(each.turns[0].num_new_tokens in sizes for each in load.conversations)
    assert all(each.tenant == replace(BETA, name="acme", weight=1.0) for each in load.conversations)


def past_request(*, at_seconds: float, size: int) -> PastRequest:
    return PastRequest(
        at_seconds=at_seconds,
        tenant_name="acme",
        num_prompt_tokens=size,
        num_cached_tokens=size // 2,
        num_output_tokens=size,
        is_cancelled=False,
        is_offline=False,
    )


@pytest.mark.parametrize("process", list(Arrivals))
def test_a_long_run_has_the_rate_it_is_given(process: Arrivals) -> None:
    times = arrival_times(process, [Phase(seconds=20_000, rate=2.0)], random_for(1, "test"))
    assert len(times) == pytest.approx(40_000, rel=0.05)
