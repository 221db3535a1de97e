"""The memory of keys and values, laid out as the operators of its device read it."""

import torch
from torch import Tensor

from kernels import native


def new_pages(
    num_blocks: int,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    # -> keys, values, each [num_blocks, num_kv_heads, block_size, head_dim]
    """Unwritten pages. On a CPU the system hands the memory out as blocks are first written.

    For the native operators a block's keys lie with their dimensions outside and its offsets inside: the same
    tensor to look at, other strides.
    """
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    values = torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cpu" and native.library() is not None:
        return values.new_empty(num_blocks, num_kv_heads, head_dim, block_size).transpose(2, 3), values
    return torch.empty_like(values), values


def are_native(key_cache: Tensor) -> bool:
    """Whether the keys lie as the native operators read them."""
    return key_cache.device.type == "cpu" and not key_cache.is_contiguous()
