"""A request whose sampling raises has an error; the others have the tokens they would have had anyway."""

import pytest

from engine.core.step import PlannedRow, SamplingParams, StepPlan, StepResult
from engine.models.loading import LoadedModel, load_model
from engine.runner.model_runner import ModelRunner
from tests.builders.tiny_llama import VOCAB_SIZE, write_tiny_llama

GOOD = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=0.8, top_p=0.9, seed=7),
    "filtered": SamplingParams(temperature=1.2, top_k=5, seed=3, banned_token_ids=(9, 40)),
}
RAISES = SamplingParams(temperature=0.0, banned_token_ids=(VOCAB_SIZE,))  # no such token


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def answers(model: LoadedModel, samplings: dict[str, SamplingParams]) -> StepResult:
    """One step in which every prompt is computed whole. Prompt and blocks follow from the id alone."""
    ids = ["poisonous", *GOOD, "also poisonous"]
    rows = tuple(
        PlannedRow(
            id,
            tuple(range(3 + len(id), 12 + len(id))),
            0,
            (3 * ids.index(id), 3 * ids.index(id) + 1, 3 * ids.index(id) + 2),
            sampling,
        )
        for id, sampling in samplings.items()
    )
    runner = ModelRunner(model, num_blocks=16, block_size=4)
    return runner.collect(runner.launch(StepPlan(step_id=1, rows=rows)))


def test_a_row_whose_sampling_raises_has_an_error_and_costs_the_others_nothing(model: LoadedModel) -> None:
    alone = answers(model, GOOD)
    beside = answers(model, {"poisonous": RAISES, **GOOD})
    assert beside.sampled == alone.sampled
    assert list(beside.errors) == ["poisonous"]
    assert "sampling failed: IndexError" in beside.errors["poisonous"]


def test_every_row_whose_sampling_raises_is_named(model: LoadedModel) -> None:
    result = answers(model, {"poisonous": RAISES, **GOOD, "also poisonous": RAISES})
    assert set(result.errors) == {"poisonous", "also poisonous"}
    assert set(result.sampled) == set(GOOD)
