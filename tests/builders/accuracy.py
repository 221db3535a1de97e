"""What a number format costs a model: perplexity of the shipped texts, and the first tokens of answers."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from engine.models.description import ModelDescription
from engine.models.loading import LoadedModel
from engine.runner.model_runner import ModelRunner
from gateway.text.chat_template import ChatTemplate
from kernels import native
from tests.builders.perplexity import BLOCK_SIZE, perplexity
from tests.builders.step_driver import drive, driven_sequences

DATA: Final = Path(__file__).parents[1] / "data" / "accuracy"
TEXTS: Final = ("prose", "technical")
NUM_GREEDY_TOKENS: Final = 8
_CHUNK_SIZE: Final = 256
_NUM_NEW_PER_STEP: Final = 8


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What one model in one format makes of the shipped texts and prompts."""

    perplexities: dict[str, float]
    """By the text's name."""

    answers: tuple[tuple[int, ...], ...]
    """The first greedy tokens after each prompt, fewer where the answer ends."""

    def ratio(self, reference: "Accuracy", text: str) -> float:
        """The text's perplexity over that of the reference; 1 is no loss."""
        return self.perplexities[text] / reference.perplexities[text]

    def num_equal_answers(self, reference: "Accuracy") -> int:
        """To how many prompts both answer with the same first tokens."""
        return sum(ours == theirs for ours, theirs in zip(self.answers, reference.answers, strict=True))


def measure_accuracy(model: LoadedModel) -> Accuracy:
    """Lets it read and answer."""
    native.set_num_threads(torch.get_num_threads())  # as a runner does; otherwise reading has one
    tokenizer = Tokenizer.from_str(model.description.tokenizer_json)
    return Accuracy(
        perplexities={text: perplexity(model, _text_ids(tokenizer, text)) for text in TEXTS},
        answers=_greedy_answers(model, _prompt_ids(tokenizer, model.description)),
    )


def _text_ids(tokenizer: Tokenizer, name: str) -> list[int]:
    ids: list[int] = tokenizer.encode((DATA / f"{name}.txt").read_text(encoding="utf-8")).ids
    return ids


def _prompt_ids(tokenizer: Tokenizer, description: ModelDescription) -> list[list[int]]:
    """As the gateway makes them: questions through the chat template, beginnings of a text as they stand."""
    prompts = tomllib.loads((DATA / "prompts.toml").read_text(encoding="utf-8"))
    assert description.chat_template is not None
    template = ChatTemplate(
        description.chat_template, bos_token=description.bos_token, eos_token=description.eos_token
    )
    rendered = [template.render([{"role": "user", "content": message}]) for message in prompts["chat"]]
    encodings = tokenizer.encode_batch(rendered, add_special_tokens=False)
    return [encoding.ids for encoding in [*encodings, *tokenizer.encode_batch(prompts["text"])]]


def _greedy_answers(model: LoadedModel, prompts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The first greedy tokens after each prompt, computed beside one another as a server would."""
    num_blocks = sum(-(-(len(prompt) + NUM_GREEDY_TOKENS) // BLOCK_SIZE) for prompt in prompts)
    sequences = driven_sequences(
        prompts, num_blocks=num_blocks, block_size=BLOCK_SIZE, max_tokens=NUM_GREEDY_TOKENS
    )
    runner = ModelRunner(model, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    drive(
        runner,
        sequences,
        chunk_size=_CHUNK_SIZE,
        max_tokens=NUM_GREEDY_TOKENS,
        num_new_per_step=_NUM_NEW_PER_STEP,
    )
    assert all(sequence.error is None for sequence in sequences)
    return tuple(_until_end(sequence.output, model.eos_token_ids) for sequence in sequences)


def _until_end(token_ids: Sequence[int], eos_token_ids: Sequence[int]) -> tuple[int, ...]:
    """With the token that ends the answer: users see nothing beyond it."""
    ends = [index for index, token_id in enumerate(token_ids) if token_id in eos_token_ids]
    return tuple(token_ids[: ends[0] + 1] if ends else token_ids)
