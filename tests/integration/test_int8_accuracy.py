"""int8 reads and answers as float32 does, within what the README promises of it."""

from pathlib import Path

import pytest

from tests.builders.accuracy import TEXTS, Accuracy, measure_accuracy

MOST_RATIO = 1.005
FEWEST_EQUAL_ANSWERS = 45  # of 50

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def float32(default_model_dir: Path) -> Accuracy:
    return measure_accuracy(default_model_dir, dtype="float32")


@pytest.fixture(scope="module")
def int8(default_model_dir: Path) -> Accuracy:
    return measure_accuracy(default_model_dir, dtype="int8")


@pytest.mark.parametrize("text", TEXTS)
def test_perplexity_of_a_text_rises_by_half_a_percent_at_most(
    text: str, int8: Accuracy, float32: Accuracy
) -> None:
    assert int8.ratio(float32, text) <= MOST_RATIO


def test_answers_to_nearly_all_prompts_begin_with_the_same_tokens(int8: Accuracy, float32: Accuracy) -> None:
    assert len(float32.answers) == 50
    assert int8.num_equal_answers(float32) >= FEWEST_EQUAL_ANSWERS
