"""The same decoder computed in one native call: what there is on a CPU with packed weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.layers import LayerCache, LayerWeights, Projection, StepInputs
from engine.models.llama import Llama
from kernels.decoder import OPERATORS, Decoder, DecoderLayer, DecoderShape, DecoderStep
from kernels.linear import PackedWeight
from kernels.paged_attention import RaggedBatch

_FIRST_POSITIONS = 1024


class NativeLlama:
    """Computes steps of `llama`, whose weights are packed, over `caches`."""

    def __init__(self, llama: Llama, caches: Sequence[LayerCache]) -> None:
        self._rotary = llama.rotary
        self._decoder = _decoder(llama, caches)
        self._allow_positions(_FIRST_POSITIONS)

    def logits(self, inputs: StepInputs, sampled_tokens: Tensor) -> Tensor:
        # sampled_tokens [num_sampled] int64 -> [num_sampled, vocab_size] float32, until the next step
        """Computes a step, and what follows those of its tokens that are sampled from."""
        assert isinstance(inputs.attention, RaggedBatch)
        most_positions = int(inputs.attention.seq_lens.max())
        if most_positions > self._num_positions:
            self._allow_positions(2 * most_positions)
        return self._decoder.forward(
            DecoderStep(
                token_ids=inputs.token_ids,
                positions=inputs.positions,
                slots=inputs.slots,
                sampled_tokens=sampled_tokens,
                attention=inputs.attention,
            )
        )

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent so far, by operator."""
        return dict(zip(OPERATORS, self._decoder.seconds.tolist(), strict=True))

    def _allow_positions(self, num_positions: int) -> None:
        """Makes the table of rotations as long as is needed: one for all that a model knows may be large."""
        self._num_positions = num_positions
        self._decoder.set_rotations(*self._rotary.rows(torch.arange(num_positions)))


def _decoder(llama: Llama, caches: Sequence[LayerCache]) -> Decoder:
    config, weights = llama.config, llama.weights
    assert isinstance(weights.output, PackedWeight)
    shape = DecoderShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        epsilon=config.rms_norm_epsilon,
    )
    return Decoder(
        shape,
        embedding=weights.embedding,
        layers=[_layer(*pair) for pair in zip(weights.layers, caches, strict=True)],
        final_norm=weights.final_norm,
        output=weights.output,
    )


def _layer(weights: LayerWeights, cache: LayerCache) -> DecoderLayer:
    return DecoderLayer(
        input_norm=weights.input_norm,
        post_attention_norm=weights.post_attention_norm,
        qkv=_packed(weights.qkv),
        attention_output=_packed(weights.attention_output),
        gate_and_up=_packed(weights.gate_and_up),
        down=_packed(weights.down),
        key_cache=cache.keys,
        value_cache=cache.values,
    )


def _packed(projection: Projection) -> tuple[PackedWeight, Tensor | None]:
    assert isinstance(projection.weight, PackedWeight)
    return projection.weight, projection.bias
