"""The default model on our own code, chunked and batched in every way, gives transformers' greedy tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from engine.models.loading import LoadedModel, load_model
from engine.runner.model_runner import ModelRunner
from tests.builders.model_logits import chunked_logits
from tests.builders.prompts import varied_prompt_ids
from tests.builders.step_driver import drive, drive_alone, driven_sequences
from tests.builders.transformers_reference import ReferenceOutput, TransformersReference, count_near_ties

pytestmark = pytest.mark.model

MAX_TOKENS = 12
TOLERANCE = 1e-3
NUM_BLOCKS, BLOCK_SIZE = 128, 32
CHUNK_SIZES = (1, 7, 16, 64)


@pytest.fixture(scope="module")
def prompts(default_model_dir: Path) -> list[list[int]]:
    return varied_prompt_ids(default_model_dir)


@pytest.fixture(scope="module")
def model(default_model_dir: Path) -> LoadedModel:
    return load_model(default_model_dir, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def runner(model: LoadedModel) -> ModelRunner:
    return ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)


@pytest.fixture(scope="module")
def references(
    default_model_dir: Path, runner: ModelRunner, prompts: list[list[int]]
) -> list[ReferenceOutput]:
    """Transformers' own; ours are the guesses that spare it a pass for every token."""
    guesses = driven_sequences(prompts, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_tokens=MAX_TOKENS)
    drive(runner, guesses, chunk_size=64, max_tokens=MAX_TOKENS)
    reference = TransformersReference(default_model_dir)
    return [
        reference.greedy(prompt, guess=guess.output) for prompt, guess in zip(prompts, guesses, strict=True)
    ]


@pytest.mark.parametrize(
    ("drive_all", "max_tokens", "chunk_size"),
    [
        *(pytest.param(drive, MAX_TOKENS, size, id=f"mixed-{size}") for size in CHUNK_SIZES),
        # Fewer: alone, every token reads all weights again.
        *(pytest.param(drive_alone, 3, size, id=f"alone-{size}") for size in (7, 64)),
    ],
)
def test_greedy_tokens_equal_transformers(
    drive_all: Callable[..., None],
    max_tokens: int,
    chunk_size: int,
    runner: ModelRunner,
    prompts: list[list[int]],
    references: list[ReferenceOutput],
) -> None:
    sequences = driven_sequences(
        prompts, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_tokens=max_tokens, seed=chunk_size
    )
    drive_all(runner, sequences, chunk_size=chunk_size, max_tokens=max_tokens)
    num_near_ties = count_near_ties(sequences, references, tolerance=TOLERANCE)
    print(f"{len(sequences)} prompts, {num_near_ties} left the reference at a near tie")


@pytest.mark.parametrize("chunk_size", [7, 64])
def test_logits_after_every_prompt_token_equal_transformers(
    chunk_size: int, model: LoadedModel, prompts: list[list[int]], references: list[ReferenceOutput]
) -> None:
    for prompt, reference in zip(prompts, references, strict=True):
        ours = chunked_logits(model, prompt, chunk_size=chunk_size)
        torch.testing.assert_close(ours, reference.prompt_logits, atol=TOLERANCE, rtol=0)


def test_the_default_model_knows_the_capital_of_france(
    default_model_dir: Path, runner: ModelRunner, prompts: list[list[int]]
) -> None:
    question = driven_sequences(prompts[:1], num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_tokens=8)
    drive(runner, question, chunk_size=64, max_tokens=8)
    tokenizer = Tokenizer.from_file(str(default_model_dir / "tokenizer.json"))
    assert "Paris" in tokenizer.decode(question[0].output)
