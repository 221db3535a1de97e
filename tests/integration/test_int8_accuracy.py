"""int8 reads and answers as float32 does, within what the README promises of it."""

from pathlib import Path

import pytest

from engine.models.loading import LoadedModel, load_model
from engine.runner.model_runner import ModelRunner
from tests.builders.accuracy import TEXTS, Accuracy, measure_accuracy
from tests.builders.prompts import varied_prompt_ids
from tests.builders.step_driver import drive, drive_alone, driven_sequences

MOST_RATIO = 1.005
FEWEST_EQUAL_ANSWERS = 45  # of 50

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def float32(default_model_dir: Path) -> Accuracy:
    return measure_accuracy(load_model(default_model_dir, dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def int8_model(default_model_dir: Path) -> LoadedModel:
    return load_model(default_model_dir, dtype="int8", device="cpu")


@pytest.fixture(scope="module")
def int8(int8_model: LoadedModel) -> Accuracy:
    return measure_accuracy(int8_model)


@pytest.mark.slow  # a minute of reading, and of answering fifty prompts twice
@pytest.mark.parametrize("text", TEXTS)
def test_perplexity_of_a_text_rises_by_half_a_percent_at_most(
    text: str, int8: Accuracy, float32: Accuracy
) -> None:
    assert int8.ratio(float32, text) <= MOST_RATIO


@pytest.mark.slow
def test_answers_to_nearly_all_prompts_begin_with_the_same_tokens(int8: Accuracy, float32: Accuracy) -> None:
    assert len(float32.answers) == 50
    assert int8.num_equal_answers(float32) >= FEWEST_EQUAL_ANSWERS


def test_answers_are_the_same_to_the_token_in_any_company_and_any_chunks(
    default_model_dir: Path, int8_model: LoadedModel
) -> None:
    """Every cut of a prompt moves who stands beside whom."""
    prompts = varied_prompt_ids(default_model_dir)[::3]
    runner = ModelRunner(int8_model, num_blocks=64, block_size=16)
    answers = []
    for drive_all, chunk_size in ((drive_alone, 64), (drive, 64), (drive, 5)):
        asked = driven_sequences(prompts, num_blocks=64, block_size=16, max_tokens=6, seed=chunk_size)
        drive_all(runner, asked, chunk_size=chunk_size, max_tokens=6)
        answers.append([each.output for each in asked])
    assert answers[0] == answers[1] == answers[2]
