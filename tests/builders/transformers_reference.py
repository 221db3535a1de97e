"""What transformers computes with the same files: the truth for our own model code."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.builders.step_driver import DrivenSequence


@dataclass(frozen=True)
class ReferenceOutput:
    """The greedy continuation of a prompt, and the logits that each token was chosen from."""

    token_ids: list[int]
    logits: Tensor  # [num_tokens, vocab_size]

    def margin(self, index: int) -> float:
        """How far the chosen token's logit was above the second best."""
        best, second = self.logits[index].topk(2).values.tolist()
        return float(best - second)


class TransformersReference:
    """A model of transformers in float32, without key-value pages or chunks."""

    def __init__(self, directory: Path) -> None:
        self._model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        # -> [num_tokens, vocab_size]
        """The logits after every token of `token_ids`."""
        logits: Tensor = self._model(torch.tensor([list(token_ids)])).logits
        return logits[0]

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], *, max_tokens: int) -> ReferenceOutput:
        """`max_tokens` greedy tokens, going on past the end of the answer."""
        given = torch.tensor([list(prompt)])
        output = self._model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=max_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        return ReferenceOutput(output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits))


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
