"""Rotary embedding of query and key fused with the paged write of key and value, in plain PyTorch.

It knows slots and rotations, and not which sequence a token belongs to.
"""

import torch
from torch import Tensor


def kv_write(
    qkv: Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]
    *,
    cos: Tensor,  # [num_tokens, head_dim] float32
    sin: Tensor,  # [num_tokens, head_dim] float32, negative in the first half
    slots: Tensor,  # [num_tokens] int64
    key_cache: Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    value_cache: Tensor,  # as key_cache
) -> Tensor:  # [num_tokens, num_heads, head_dim]
    """Rotates query and key, writes key and value to their slots, returns the rotated query.

    `qkv` holds all query heads, then the key heads, then the value heads. Slot s is offset `s % block_size`
    of block `s // block_size`. Rotation is `x * cos + swap(x) * sin`, where swap exchanges the halves of a
    head, in float32 whatever the type of `qkv`. No two tokens of one call may share a slot.
    """
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    rotated = _rotate(heads[:, :-num_kv_heads], cos, sin)
    blocks, offsets = slots // block_size, slots % block_size
    key_cache[blocks, :, offsets] = rotated[:, -num_kv_heads:].to(key_cache.dtype)
    value_cache[blocks, :, offsets] = heads[:, -num_kv_heads:].to(value_cache.dtype)
    return rotated[:, :-num_kv_heads]


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = heads.float()
    swapped = wide.roll(wide.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cos.unsqueeze(1), swapped, sin.unsqueeze(1)).to(heads.dtype)
