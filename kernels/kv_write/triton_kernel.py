"""Rotary embedding and paged write as one Triton launch; reference.py says what it computes.

One program handles one head of one token, so tokens and heads are independent and no order is needed.
"""

# mypy: disable-error-code="no-untyped-def"
# (a kernel's arguments have no types until Triton specialises it)

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def kv_write_kernel(
    qkv_ptr,  # [num_tokens, (num_heads + 2 * num_kv_heads) * HEAD_DIM]
    cos_ptr,  # [num_tokens, HEAD_DIM]
    sin_ptr,  # [num_tokens, HEAD_DIM]
    slots_ptr,  # [num_tokens] int64
    query_ptr,  # [num_tokens, num_heads, HEAD_DIM]
    key_cache_ptr,  # [num_blocks, num_kv_heads, block_size, HEAD_DIM]
    value_cache_ptr,
    qkv_stride,
    num_heads,
    num_kv_heads,
    block_size,
    HEAD_DIM: tl.constexpr,
    PADDED_HEAD_DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, PADDED_HEAD_DIM)
    inside = dims < HEAD_DIM

    row_ptr = qkv_ptr + token * qkv_stride + head * HEAD_DIM
    values = tl.load(row_ptr + dims, mask=inside, other=0.0).to(tl.float32)

    slot = tl.load(slots_ptr + token)  # int64, so that large caches do not overflow an address
    kv_head = tl.where(head < num_heads + num_kv_heads, head - num_heads, head - num_heads - num_kv_heads)
    tile = (slot // block_size) * num_kv_heads + kv_head
    cache_offset = (tile * block_size + slot % block_size) * HEAD_DIM

    if head >= num_heads + num_kv_heads:
        target = value_cache_ptr + cache_offset + dims
        tl.store(target, values.to(value_cache_ptr.dtype.element_ty), mask=inside)
    else:
        swapped = tl.load(row_ptr + (dims + HEAD_DIM // 2) % HEAD_DIM, mask=inside, other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + token * HEAD_DIM + dims, mask=inside, other=0.0)
        sin = tl.load(sin_ptr + token * HEAD_DIM + dims, mask=inside, other=0.0)
        rotated = values * cos + swapped * sin
        if head >= num_heads:
            target = key_cache_ptr + cache_offset + dims
            tl.store(target, rotated.to(key_cache_ptr.dtype.element_ty), mask=inside)
        else:
            target = query_ptr + (token * num_heads + head) * HEAD_DIM + dims
            tl.store(target, rotated.to(query_ptr.dtype.element_ty), mask=inside)


def kv_write(
    qkv: Tensor, *, cos: Tensor, sin: Tensor, slots: Tensor, key_cache: Tensor, value_cache: Tensor
) -> Tensor:
    """As reference.kv_write. All tensors but `qkv` are contiguous; `qkv` is contiguous within a row."""
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    num_tokens, num_heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * num_kv_heads
    assert qkv.stride(1) == 1
    assert key_cache.is_contiguous()
    assert value_cache.is_contiguous()
    query = torch.empty((num_tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    kv_write_kernel[(num_tokens, num_heads + 2 * num_kv_heads)](
        qkv,
        cos,
        sin,
        slots,
        query,
        key_cache,
        value_cache,
        qkv.stride(0),
        num_heads,
        num_kv_heads,
        block_size,
        HEAD_DIM=head_dim,
        PADDED_HEAD_DIM=triton.next_power_of_2(head_dim),
    )
    return query
