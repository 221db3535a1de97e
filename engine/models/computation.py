"""A model over its caches: the one thing that a runner asks for. Picks how it is computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.models.layers import LayerCache, StepInputs
from engine.models.llama import Llama
from engine.models.native_llama import NativeLlama
from kernels.linear import PackedWeight


class Computation(Protocol):
    """Computes steps of one model, leaving keys and values in its caches."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Time spent so far, by operator; empty where that is not known."""

    def logits(self, inputs: StepInputs, sampled_tokens: Tensor) -> Tensor:
        # sampled_tokens [num_sampled] int64 -> [num_sampled, vocab_size] float32
        """Computes a step, and what follows those of its tokens that are sampled from.

        The result may be overwritten by the next step.
        """


@dataclass(frozen=True)
class OperatorByOperator:
    """The model as it is written in llama.py: on a GPU, and where there are no native operators."""

    llama: Llama
    caches: Sequence[LayerCache]

    @property
    def seconds(self) -> Mapping[str, float]:
        """Nothing: looking at a clock between operators would wait for each of them."""
        return {}

    def logits(self, inputs: StepInputs, sampled_tokens: Tensor) -> Tensor:
        # sampled_tokens [num_sampled] int64 -> [num_sampled, vocab_size] float32
        """See Computation."""
        hidden = self.llama.forward(inputs, self.caches)
        return self.llama.logits(hidden.index_select(0, sampled_tokens))


def computation(llama: Llama, caches: Sequence[LayerCache]) -> Computation:
    """The fastest way to compute `llama` over `caches`."""
    if isinstance(llama.weights.output, PackedWeight):
        return NativeLlama(llama, caches)
    return OperatorByOperator(llama, caches)
