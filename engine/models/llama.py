"""A decoder of the Llama family: token ids in, hidden states and logits out. Holds weights, no state."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from engine.models.config import ModelConfig
from engine.models.layers import LayerCache, LayerWeights, Rotation, StepInputs, attend, feed_forward
from engine.models.rotary import RotaryEmbedding
from kernels.linear import Weight, linear
from kernels.rms_norm import add_and_rms_norm, rms_norm


@dataclass(frozen=True, kw_only=True)
class LlamaWeights:
    """All tensors of the model, on one device and of one precision."""

    embedding: Tensor  # [vocab_size, hidden_size]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden_size]
    output: Weight  # [vocab_size, hidden_size]


@dataclass(frozen=True, kw_only=True)
class Llama:
    """The model's computation."""

    config: ModelConfig
    weights: LlamaWeights
    rotary: RotaryEmbedding

    def forward(self, inputs: StepInputs, caches: Sequence[LayerCache]) -> Tensor:
        # -> [num_tokens, hidden_size]
        """Computes a step's tokens, leaving keys and values in `caches`; `logits` does the last norm."""
        cos, sin = self.rotary.rows(inputs.positions)
        rotation = Rotation(cos=cos, sin=sin)
        epsilon = self.config.rms_norm_epsilon
        residual = functional.embedding(inputs.token_ids, self.weights.embedding).to(
            self.weights.final_norm.dtype
        )
        hidden = rms_norm(residual, self.weights.layers[0].input_norm, epsilon=epsilon)
        for index, layer in enumerate(self.weights.layers):
            if index > 0:
                hidden, residual = add_and_rms_norm(hidden, residual, layer.input_norm, epsilon=epsilon)
            hidden = attend(hidden, layer, caches[index], rotation, inputs)
            hidden, residual = add_and_rms_norm(hidden, residual, layer.post_attention_norm, epsilon=epsilon)
            hidden = feed_forward(hidden, layer)
        return residual.add_(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        # hidden [num_rows, hidden_size] -> [num_rows, vocab_size] float32
        """The logits that follow each row; give only the rows that sample, as this is the widest product."""
        normalised = rms_norm(hidden, self.weights.final_norm, epsilon=self.config.rms_norm_epsilon)
        return linear(normalised, self.weights.output).float()
