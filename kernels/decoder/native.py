"""The decoder of native.cpp: what it needs of a model and a step, as plain tensors."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kernels.kv_write.native import KvCacheStruct, kv_cache_struct
from kernels.linear.native import LinearStruct, PackedWeight
from kernels.paged_attention import RaggedBatch
from kernels.paged_attention.native import AttentionBatchStruct, attention_batch_struct
from kernels.tensors import Address, address

OPERATORS: Final = (
    "norm",
    "qkv",
    "kv_write",
    "attention",
    "attention_output",
    "gate_and_up",
    "activation",
    "down",
    "output",
)
"""What a step's time is spent on, in the order of native.cpp's enum."""

_KINDS: Final = {torch.float32: 0, torch.bfloat16: 1}


class _LayerStruct(ctypes.Structure):
    _fields_ = (
        ("input_norm", Address),
        ("post_attention_norm", Address),
        ("qkv", LinearStruct),
        ("attention_output", LinearStruct),
        ("gate_and_up", LinearStruct),
        ("down", LinearStruct),
        ("cache", KvCacheStruct),
    )


class _DecoderStruct(ctypes.Structure):
    _fields_ = (
        ("num_layers", ctypes.c_int32),
        ("hidden_size", ctypes.c_int32),
        ("intermediate_size", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("vocab_size", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("query_scale", ctypes.c_float),
        ("embedding_kind", ctypes.c_int32),
        ("embedding", Address),
        ("final_norm", Address),
        ("cos", Address),
        ("sin", Address),
        ("output", LinearStruct),
        ("layers", ctypes.POINTER(_LayerStruct)),
    )


class _StepStruct(ctypes.Structure):
    _fields_ = (
        ("num_tokens", ctypes.c_int32),
        ("num_sampled", ctypes.c_int32),
        ("token_ids", Address),
        ("positions", Address),
        ("slots", Address),
        ("sampled_tokens", Address),
        ("attention", AttentionBatchStruct),
    )


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The sizes that all layers share."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    head_dim: int
    vocab_size: int
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class DecoderLayer:
    """One layer's tensors and pages. Norms and biases are float32; each pair is a weight and its bias."""

    input_norm: Tensor  # [hidden_size]
    post_attention_norm: Tensor  # [hidden_size]
    qkv: tuple[PackedWeight, Tensor | None]
    attention_output: tuple[PackedWeight, Tensor | None]
    gate_and_up: tuple[PackedWeight, Tensor | None]
    down: tuple[PackedWeight, Tensor | None]
    key_cache: Tensor  # pages of kv_write.new_pages
    value_cache: Tensor

    def struct(self) -> _LayerStruct:
        """The layer for C++."""
        return _LayerStruct(
            address(self.input_norm),
            address(self.post_attention_norm),
            *(weight.struct(bias) for weight, bias in (self.qkv, self.attention_output)),
            *(weight.struct(bias) for weight, bias in (self.gate_and_up, self.down)),
            kv_cache_struct(self.key_cache, self.value_cache),
        )


@dataclass(frozen=True, kw_only=True)
class DecoderStep:
    """One step's tokens, laid end to end."""

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slots: Tensor  # [num_tokens] int64
    sampled_tokens: Tensor  # [num_sampled] int64, rising
    attention: RaggedBatch


class Decoder:
    """Computes steps. One at a time: they share its buffers."""

    def __init__(
        self,
        shape: DecoderShape,
        *,
        embedding: Tensor,  # [vocab_size, hidden_size] float32 or bfloat16
        layers: Sequence[DecoderLayer],
        final_norm: Tensor,  # [hidden_size] float32
        output: PackedWeight,
    ) -> None:
        """Before the first step, `set_rotations`."""
        self._library = output.library
        self._library.sluice_workspace_new.restype = Address
        self._library.sluice_decoder_forward.restype = ctypes.POINTER(ctypes.c_float)
        self._vocab_size = shape.vocab_size
        self._kept = (embedding, tuple(layers), final_norm, output)  # C++ has their addresses only
        self._layers = (_LayerStruct * len(layers))(*(layer.struct() for layer in layers))
        self._decoder = _DecoderStruct(
            len(layers),
            shape.hidden_size,
            shape.intermediate_size,
            shape.num_heads,
            shape.head_dim,
            shape.vocab_size,
            shape.epsilon,
            shape.head_dim**-0.5,
            _KINDS[embedding.dtype],
            address(embedding, embedding.dtype),
            address(final_norm),
            None,
            None,
            output.struct(None),
            self._layers,
        )
        self._workspace = self._library.sluice_workspace_new()
        self.seconds = np.zeros(len(OPERATORS))
        """Time spent so far, by operator."""

    def set_rotations(self, cos: Tensor, sin: Tensor) -> None:
        # each [num_positions, head_dim] float32, as kv_write takes them
        """Gives the rotations of the positions that steps may have from now on."""
        self._rotations = (cos, sin)
        self._decoder.cos, self._decoder.sin = address(cos), address(sin)

    def __del__(self) -> None:
        if hasattr(self, "_workspace"):
            self._library.sluice_workspace_delete(self._workspace)

    def forward(self, step: DecoderStep) -> Tensor:
        # -> [num_sampled, vocab_size] float32, overwritten by the next step
        """Writes the step's keys and values to the pages and returns the logits of its sampled tokens.

        Raises IndexError for a token id that the model does not know.
        """
        num_sampled = step.sampled_tokens.shape[0]
        struct = _StepStruct(
            step.token_ids.shape[0],
            num_sampled,
            *(
                address(t, torch.int64)
                for t in (step.token_ids, step.positions, step.slots, step.sampled_tokens)
            ),
            attention_batch_struct(step.attention),
        )
        logits = self._library.sluice_decoder_forward(
            ctypes.byref(self._decoder),
            ctypes.byref(struct),
            self._workspace,
            Address(self.seconds.ctypes.data),
        )
        if not logits:
            raise IndexError(f"a token id is not below {self._vocab_size}")
        if num_sampled == 0:
            return torch.empty(0, self._vocab_size)
        return torch.from_numpy(np.ctypeslib.as_array(logits, shape=(num_sampled, self._vocab_size)))
