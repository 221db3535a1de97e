"""The blocks that Llama-family decoders are made of, over paged caches. Knows one step, no sequences."""

import math
from dataclasses import dataclass

from torch import Tensor

from kernels.kv_write import kv_write
from kernels.linear import Weight, linear
from kernels.paged_attention import AttentionPlan, paged_attention
from kernels.silu_and_mul import silu_and_mul


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A linear layer's tensors."""

    weight: Weight  # [out_size, in_size]
    bias: Tensor | None  # [out_size]

    def __call__(self, rows: Tensor) -> Tensor:
        # [num_rows, in_size] -> [num_rows, out_size]
        return linear(rows, self.weight, self.bias)


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Query, key and value are one product, and so are gate and up."""

    input_norm: Tensor  # [hidden_size]
    qkv: Projection  # out_size (num_heads + 2 * num_kv_heads) * head_dim
    attention_output: Projection
    post_attention_norm: Tensor  # [hidden_size]
    gate_and_up: Projection  # out_size 2 * intermediate_size
    down: Projection


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """One layer's keys and values of all blocks."""

    keys: Tensor  # [num_blocks, num_kv_heads, block_size, head_dim]
    values: Tensor  # as keys


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """The tokens of one step, laid end to end, and where their keys and values go and are found."""

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slots: Tensor  # [num_tokens] int64
    attention: AttentionPlan


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """The rotations of a step's tokens, the same in every layer."""

    cos: Tensor  # [num_tokens, head_dim] float32
    sin: Tensor  # [num_tokens, head_dim] float32


def attend(
    hidden: Tensor, layer: LayerWeights, cache: LayerCache, rotation: Rotation, inputs: StepInputs
) -> Tensor:
    # hidden [num_tokens, hidden_size] -> the same
    """Self-attention: the tokens' keys and values are written first, so that they see one another."""
    query = kv_write(
        layer.qkv(hidden),
        cos=rotation.cos,
        sin=rotation.sin,
        slots=inputs.slots,
        key_cache=cache.keys,
        value_cache=cache.values,
    )
    scale = 1 / math.sqrt(query.shape[2])
    attended = paged_attention(query, cache.keys, cache.values, inputs.attention, scale=scale)
    return layer.attention_output(attended.flatten(1))


def feed_forward(hidden: Tensor, layer: LayerWeights) -> Tensor:
    # hidden [num_tokens, hidden_size] -> the same
    """The gated MLP."""
    return layer.down(silu_and_mul(layer.gate_and_up(hidden)))
