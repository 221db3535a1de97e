"""The runner on a tiny model: batching changes nothing, and one sequence's trouble is its own."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.step import PlannedRow, SamplingParams, StepPlan
from engine.models.loading import LoadedModel, load_model
from engine.runner.kv_tensors import allocate_kv_tensors, kv_block_bytes, num_blocks_in
from engine.runner.model_runner import NOT_FINITE, ModelRunner
from tests.builders.step_driver import DrivenSequence, drive, drive_alone, driven_sequences
from tests.builders.tiny_llama import write_tiny_llama

NUM_BLOCKS, BLOCK_SIZE, MAX_TOKENS = 96, 4, 12
PROMPTS = [list(range(10, 10 + length)) for length in (1, 3, 4, 5, 8, 17, 30)]
SAMPLING = [
    SamplingParams(temperature=0.0 if index % 3 == 0 else 0.8, top_p=0.9, top_k=index * 5, seed=index)
    for index in range(len(PROMPTS))
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def new_runner(model: LoadedModel) -> ModelRunner:
    return ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)


def sequences(seed: int = 0) -> list[DrivenSequence]:
    return driven_sequences(
        PROMPTS,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_tokens=MAX_TOKENS,
        sampling=SAMPLING,
        seed=seed,
    )


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> list[list[int]]:
    alone = sequences()
    drive_alone(new_runner(model), alone, chunk_size=64, max_tokens=MAX_TOKENS)
    return [sequence.output for sequence in alone]


@settings(max_examples=8, deadline=None)
@given(chunk_size=st.integers(1, 40), num_new_per_step=st.integers(1, len(PROMPTS)), seed=st.integers(0, 100))
def test_sampled_tokens_do_not_depend_on_chunks_company_or_blocks(
    chunk_size: int, num_new_per_step: int, seed: int, model: LoadedModel, expected: list[list[int]]
) -> None:
    mixed = sequences(seed)
    drive(
        new_runner(model),
        mixed,
        chunk_size=chunk_size,
        max_tokens=MAX_TOKENS,
        num_new_per_step=num_new_per_step,
    )
    assert [sequence.output for sequence in mixed] == expected


def test_a_sequence_that_is_not_a_number_fails_alone(model: LoadedModel, expected: list[list[int]]) -> None:
    runner = new_runner(model)
    mixed = sequences()
    drive(runner, mixed, chunk_size=64, max_tokens=3, num_new_per_step=len(mixed))
    poisoned = mixed[4]
    runner._caches[1].values[poisoned.block_table[0]] = math.nan
    drive(runner, mixed, chunk_size=64, max_tokens=MAX_TOKENS, num_new_per_step=len(mixed))
    assert poisoned.error == NOT_FINITE
    healthy = [index for index in range(len(mixed)) if index != 4]
    assert [mixed[index].output for index in healthy] == [expected[index] for index in healthy]


def test_blocks_that_held_nan_serve_the_next_sequence(model: LoadedModel, expected: list[list[int]]) -> None:
    runner = new_runner(model)
    for cache in runner._caches:
        cache.keys.fill_(math.nan)
        cache.values.fill_(math.nan)
    mixed = sequences()
    drive(runner, mixed, chunk_size=5, max_tokens=MAX_TOKENS)
    assert [sequence.output for sequence in mixed] == expected


def test_rows_without_sampling_bring_no_token(model: LoadedModel) -> None:
    row = PlannedRow(sequence_id="a", token_ids=(5, 6), start=0, block_table=(0,), sampling=None)
    runner = new_runner(model)
    result = runner.collect(runner.launch(StepPlan(step_id=3, rows=(row,))))
    assert (result.step_id, result.sampled, result.errors) == (3, {}, {})


def test_an_empty_plan_has_an_empty_result(model: LoadedModel) -> None:
    runner = new_runner(model)
    assert runner.collect(runner.launch(StepPlan(step_id=1, rows=()))).sampled == {}


def test_banned_tokens_are_not_sampled(model: LoadedModel) -> None:
    runner = new_runner(model)

    def first_token(banned: tuple[int, ...]) -> int:
        row = PlannedRow(
            sequence_id="a",
            token_ids=(5, 6),
            start=0,
            block_table=(0,),
            sampling=SamplingParams(temperature=0.0, banned_token_ids=banned),
        )
        return runner.collect(runner.launch(StepPlan(step_id=1, rows=(row,)))).sampled["a"][0]

    favourite = first_token(())
    assert first_token((favourite,)) != favourite


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-38, 1e-9])
def test_a_temperature_next_to_zero_is_greedy(model: LoadedModel, temperature: float) -> None:
    runner = new_runner(model)

    def first_token(temperature: float) -> int:
        sampling = SamplingParams(temperature=temperature)
        row = PlannedRow(sequence_id="a", token_ids=(5, 6), start=0, block_table=(0,), sampling=sampling)
        return runner.collect(runner.launch(StepPlan(step_id=1, rows=(row,)))).sampled["a"][0]

    assert first_token(temperature) == first_token(0.0)


def test_warm_up_leaves_no_trace_in_what_follows(model: LoadedModel, expected: list[list[int]]) -> None:
    runner = new_runner(model)
    runner.warm_up()
    mixed = sequences()
    drive(runner, mixed, chunk_size=64, max_tokens=MAX_TOKENS)
    assert [sequence.output for sequence in mixed] == expected


def test_block_bytes_are_what_the_tensors_take(model: LoadedModel) -> None:
    caches = allocate_kv_tensors(
        model.config, num_blocks=6, block_size=4, dtype=torch.bfloat16, device=model.device
    )
    taken = sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)
    block_bytes = kv_block_bytes(model.config, block_size=4, dtype=torch.bfloat16)
    assert taken == 6 * block_bytes
    assert num_blocks_in(taken + 1, model.config, block_size=4, dtype=torch.bfloat16) == 6
    assert num_blocks_in(taken - 1, model.config, block_size=4, dtype=torch.bfloat16) == 5
