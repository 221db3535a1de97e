"""Step times: learned from noisy machines, kept through monotony, not spoilt by accidents."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.core.predictor import StepLoad, StepTimeModel
from engine.core.step import prefill_pairs

PAIR_COST = 0.5
MIXED = StepLoad(
    num_prefill_tokens=700, num_decode_rows=20, num_context_tokens=30_000, num_prefill_pairs=500_000
)
DECODES = StepLoad(num_decode_rows=8, num_context_tokens=8_000)


def true_seconds(load: StepLoad) -> float:
    return (
        0.004
        + 2e-5 * load.num_prefill_tokens
        + 1e-4 * load.num_decode_rows
        + 2e-8 * (load.num_context_tokens + PAIR_COST * load.num_prefill_pairs)
    )


def random_loads(num_steps: int, seed: int = 0) -> Iterator[StepLoad]:
    dice = random.Random(seed)
    for _ in range(num_steps):
        num_prefill_tokens = dice.choice([0, 0, dice.randint(1, 2048)])
        yield StepLoad(
            num_prefill_tokens,
            dice.randint(0, 64),
            dice.randint(0, 100_000),
            prefill_pairs(dice.randint(0, 512), num_prefill_tokens),
        )


def feed(
    model: StepTimeModel, num_steps: int, *, slowdown: float = 1.0, noise: float = 0.0, seed: int = 0
) -> None:
    dice = random.Random(seed)
    for load in random_loads(num_steps, seed):
        model.observe(load, true_seconds(load) * slowdown * dice.lognormvariate(0, noise))


@pytest.fixture
def trained() -> StepTimeModel:
    model = StepTimeModel(PAIR_COST)
    feed(model, 100)
    return model


def test_the_four_costs_are_learned(trained: StepTimeModel) -> None:
    assert trained.seconds_per_prefill_token == pytest.approx(2e-5, rel=0.01)
    assert trained.decode_row_seconds(0) == pytest.approx(1e-4, rel=0.01)
    assert trained.decode_row_seconds(10_000) == pytest.approx(3e-4, rel=0.01)
    pairs = StepLoad(num_prefill_pairs=10**6)
    assert trained.seconds(pairs) - trained.seconds(StepLoad()) == pytest.approx(0.01, rel=0.01)
    assert trained.seconds(StepLoad()) == pytest.approx(0.004, rel=0.01)
    assert trained.seconds(MIXED) == pytest.approx(true_seconds(MIXED), rel=0.01)


def test_costs_of_one_tenth_noise_are_learned_within_a_tenth() -> None:
    model = StepTimeModel(PAIR_COST)
    feed(model, 1_000, noise=0.1)
    assert model.seconds(MIXED) == pytest.approx(true_seconds(MIXED), rel=0.1)


def test_there_is_no_opinion_before_enough_steps() -> None:
    model = StepTimeModel(PAIR_COST)
    feed(model, 15)
    assert not model.is_trained
    assert model.seconds(MIXED) == 0.0
    assert not model.knows_prefill
    assert model.least_seconds(1_000, 10, 512) == 0.0


def test_sixteen_steps_are_enough() -> None:
    model = StepTimeModel(PAIR_COST)
    feed(model, 16)
    assert model.is_trained


def test_there_is_no_opinion_on_prefill_that_was_never_seen() -> None:
    model = StepTimeModel(PAIR_COST)
    for _ in range(50):
        model.observe(DECODES, true_seconds(DECODES))
    assert not model.knows_prefill


def test_a_duration_of_zero_is_no_measurement() -> None:
    model = StepTimeModel(PAIR_COST)
    for load in random_loads(20):
        model.observe(load, 0.0)
    assert not model.is_trained


def test_one_step_of_ten_times_its_length_changes_no_prediction(trained: StepTimeModel) -> None:
    before = trained.seconds(MIXED)
    trained.observe(MIXED, 10 * true_seconds(MIXED))
    assert trained.seconds(MIXED) == before


def test_a_pause_in_every_twentieth_step_is_not_learned() -> None:
    model = StepTimeModel(PAIR_COST)
    for index, load in enumerate(random_loads(1_000)):
        model.observe(load, true_seconds(load) * (10 if index % 20 == 19 else 1))
    assert model.seconds(MIXED) == pytest.approx(true_seconds(MIXED), rel=0.05)


def test_first_steps_that_warm_up_do_not_spoil_the_fit() -> None:
    model = StepTimeModel(PAIR_COST)
    for load in random_loads(3, seed=1):
        model.observe(load, 300 * true_seconds(load))
    feed(model, 50)
    assert model.seconds(MIXED) == pytest.approx(true_seconds(MIXED), rel=0.05)


def test_a_machine_that_becomes_slower_is_followed(trained: StepTimeModel) -> None:
    feed(trained, 300, slowdown=3.0)
    assert trained.seconds(MIXED) == pytest.approx(3 * true_seconds(MIXED), rel=0.1)


def test_steps_that_all_become_ten_times_longer_are_no_accidents_for_long(trained: StepTimeModel) -> None:
    for _ in range(25):
        trained.observe(MIXED, 10 * true_seconds(MIXED))
    assert trained.seconds(MIXED) > 2 * true_seconds(MIXED)


def test_one_cost_that_changes_is_learned_anew() -> None:
    """Of prompts that attend to nothing: with pairs, how much is whose shows later than what both cost."""
    model = StepTimeModel(PAIR_COST)
    for load in random_loads(2_000):
        alone = replace(load, num_prefill_pairs=0)
        model.observe(alone, true_seconds(alone))
    for load in random_loads(1_500, seed=4):
        alone = replace(load, num_prefill_pairs=0)
        model.observe(alone, true_seconds(alone) + 1e-6 * alone.num_prefill_tokens)
    assert model.seconds_per_prefill_token == pytest.approx(2.1e-5, rel=0.005)


def test_what_a_prompt_costs_is_learned_anew_together_with_what_it_attends_to() -> None:
    model = StepTimeModel(PAIR_COST)
    feed(model, 2_000)
    for load in random_loads(1_500, seed=4):
        model.observe(load, true_seconds(load) + 1e-6 * load.num_prefill_tokens)
    assert model.seconds(MIXED) == pytest.approx(true_seconds(MIXED) + 7e-4, rel=0.01)


def test_a_machine_that_becomes_faster_is_followed(trained: StepTimeModel) -> None:
    feed(trained, 300, slowdown=0.3)
    assert trained.seconds(MIXED) == pytest.approx(0.3 * true_seconds(MIXED), rel=0.1)


def test_the_cost_of_prefill_outlives_ten_thousand_steps_without_any(trained: StepTimeModel) -> None:
    dice = random.Random(2)
    for _ in range(10_000):
        trained.observe(DECODES, true_seconds(DECODES) * dice.lognormvariate(0, 0.3))
    assert trained.seconds_per_prefill_token == pytest.approx(2e-5, rel=0.05)


def test_a_prefill_after_ten_thousand_steps_without_any_does_not_blow_up_the_fit(
    trained: StepTimeModel,
) -> None:
    for _ in range(10_000):
        trained.observe(DECODES, true_seconds(DECODES))
    trained.observe(MIXED, 1.5 * true_seconds(MIXED))
    assert trained.seconds(MIXED) == pytest.approx(true_seconds(MIXED), rel=0.1)


def test_the_first_prefill_ever_is_learned_from_at_once() -> None:
    model = StepTimeModel(PAIR_COST)
    for _ in range(10_000):
        model.observe(DECODES, true_seconds(DECODES))
    first = StepLoad(2_048, 8, 8_000)
    model.observe(first, true_seconds(first))
    assert model.seconds(first) == pytest.approx(true_seconds(first), rel=0.05)


def test_a_first_prefill_that_was_an_accident_is_corrected_by_eight_that_were_not() -> None:
    model = StepTimeModel(PAIR_COST)
    for _ in range(100):
        model.observe(DECODES, true_seconds(DECODES))
    first = StepLoad(512, 8, 8_000)
    model.observe(first, 10 * true_seconds(first))
    for _ in range(8):
        model.observe(first, true_seconds(first))
    assert model.seconds(first) == pytest.approx(true_seconds(first), rel=0.1)


def test_no_cost_is_negative_when_loads_go_together() -> None:
    model, dice = StepTimeModel(PAIR_COST), random.Random(3)
    for _ in range(200):
        rows = dice.randint(1, 32)
        model.observe(StepLoad(0, rows, 100 * rows + dice.randint(0, 9)), 0.01 + dice.random() * 0.01)
    assert model.seconds(StepLoad(0, 0, 10**9)) >= 0.0
    assert model.seconds(StepLoad(0, 10**6, 0)) >= 0.0
    assert model.seconds(StepLoad()) >= 0.0


def test_costs_have_a_floor_above_zero() -> None:
    model = StepTimeModel(PAIR_COST)
    assert model.seconds_per_prefill_token > 0
    assert model.decode_row_seconds(0) > 0


def test_one_of_fifty_steps_of_a_noisy_machine_takes_longer_than_its_tail(trained: StepTimeModel) -> None:
    noisy = StepTimeModel(PAIR_COST)
    feed(noisy, 2_000, noise=0.2)
    feed(trained, 2_000)
    assert trained.tail == pytest.approx(1.0, abs=0.05)
    assert noisy.tail == pytest.approx(math.exp(2.054 * 0.2), rel=0.1)


@pytest.mark.parametrize("start", [0, 500, 8_000])
def test_the_largest_chunk_within_a_time_just_fits(trained: StepTimeModel, start: int) -> None:
    def seconds(num_tokens: int) -> float:
        pairs = prefill_pairs(start, num_tokens)
        return trained.seconds(StepLoad(num_tokens, 0, 0, pairs)) - trained.seconds(StepLoad())

    num_tokens = trained.chunk_within(0.03, start)
    assert seconds(num_tokens) <= 0.03 < seconds(num_tokens + 1)


def test_a_chunk_at_the_end_of_a_long_prompt_is_smaller_than_one_at_its_start(trained: StepTimeModel) -> None:
    assert trained.chunk_within(0.03, 8_000) < trained.chunk_within(0.03, 0) / 3


def test_no_token_fits_where_attending_to_what_stands_before_it_takes_all_the_time(
    trained: StepTimeModel,
) -> None:
    assert trained.chunk_within(0.001, 100_000) == 0
    assert trained.chunk_within(-0.001, 0) == 0


def test_the_least_time_is_below_the_true_one_but_not_far(trained: StepTimeModel) -> None:
    truth = 4 * 0.004 + 2_000 * 2e-5 + 50 * (0.004 + 1e-4)
    assert 0.6 * truth < trained.least_seconds(2_000, 50, 512) <= 0.8 * truth * 1.001


def test_the_least_time_of_a_noisy_machine_stays_below_the_true_one() -> None:
    model = StepTimeModel(PAIR_COST)
    feed(model, 500, noise=0.3)
    assert model.least_seconds(2_000, 50, 512) < 4 * 0.004 + 2_000 * 2e-5 + 50 * (0.004 + 1e-4)


@pytest.mark.parametrize("load", [DECODES, MIXED, StepLoad(4_096, 64, 200_000)])
def test_the_least_time_does_not_rise_because_of_one_accident(trained: StepTimeModel, load: StepLoad) -> None:
    before = trained.least_seconds(2_000, 50, 512)
    trained.observe(load, 10 * true_seconds(load))
    assert trained.least_seconds(2_000, 50, 512) <= before


def test_the_least_time_does_not_rise_because_the_first_prefill_was_an_accident() -> None:
    model = StepTimeModel(PAIR_COST)
    for load in random_loads(100):
        model.observe(StepLoad(0, load.num_decode_rows, load.num_context_tokens), 0.004)
    before = model.least_seconds(2_000, 0, 512)
    model.observe(MIXED, 10 * true_seconds(MIXED))
    assert model.least_seconds(2_000, 0, 512) <= before


def test_steps_of_one_size_do_not_tell_how_long_a_lone_decode_takes() -> None:
    """All of such a step's time may be its rows': eight rows say nothing of one."""
    model = StepTimeModel(PAIR_COST)
    for _ in range(1_000):
        model.observe(StepLoad(num_decode_rows=8), 0.008)
    assert model.least_seconds(0, 100, 512) <= 100 * 0.001
