"""What transformers computes with the same files: the truth for our own model code."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.builders.step_driver import DrivenSequence


@dataclass(frozen=True)
class ReferenceOutput:
    """The greedy continuation of a prompt, and the logits after every token that leads to it."""

    token_ids: list[int]
    logits: Tensor  # [num_prompt_tokens - 1 + num_tokens, vocab_size]

    @property
    def prompt_logits(self) -> Tensor:
        # -> [num_prompt_tokens, vocab_size]
        """Those after every token of the prompt."""
        return self.logits[: len(self.logits) + 1 - len(self.token_ids)]

    def margin(self, index: int) -> float:
        """How far the chosen token's logit was above the second best."""
        best, second = self.logits[index - len(self.token_ids)].topk(2).values.tolist()
        return float(best - second)


class TransformersReference:
    """A model of transformers in float32, without key-value pages or chunks."""

    def __init__(self, directory: Path) -> None:
        self._model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        # -> [num_tokens, vocab_size]
        """The logits after every token of `token_ids`."""
        with _one_thread():
            logits: Tensor = self._model(torch.tensor([list(token_ids)])).logits
        return logits[0]

    def greedy(self, prompt: Sequence[int], *, guess: Sequence[int]) -> ReferenceOutput:
        """As many greedy tokens as are guessed, going on past the end of the answer.

        A pass confirms all guesses up to the first wrong one, and puts that right: the fewer are wrong, the
        sooner it is done, and whatever is guessed, the answer is the model's own.
        """
        token_ids = list(guess)
        num_sure = 0
        while True:
            logits = self.logits([*prompt, *token_ids[:-1]])
            chosen = logits[len(prompt) - 1 :].argmax(dim=-1).tolist()
            wrong = (i for i in range(num_sure, len(guess)) if chosen[i] != token_ids[i])
            index = next(wrong, None)
            if index is None:
                return ReferenceOutput(token_ids, logits)
            token_ids[index] = chosen[index]
            num_sure = index + 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """On a busy machine torch's threads wait for one another: a pass of 16 tokens took 0.6 s, not 3."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def count_near_ties(
    sequences: Sequence[DrivenSequence], references: Sequence[ReferenceOutput], *, tolerance: float
) -> int:
    """How many sequences left the reference where its two best logits are within `tolerance`.

    Fails on one that left it anywhere else. What follows a near tie is a different text and is not compared;
    nor is what a longer reference has beyond a sequence's output.
    """
    num_near_ties = 0
    for sequence, reference in zip(sequences, references, strict=True):
        assert sequence.error is None
        pairs = enumerate(zip(sequence.output, reference.token_ids, strict=False))
        parting = next((index for index, (ours, theirs) in pairs if ours != theirs), None)
        if parting is not None:
            margin = reference.margin(parting)
            assert margin <= tolerance, f"{sequence.id} differs at token {parting}, margin {margin:.2e}"
            num_near_ties += 1
    return num_near_ties
