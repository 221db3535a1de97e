"""Rotary embedding and the paged write of keys and values, in C++. See reference.py for what it computes."""

import ctypes

import torch
from torch import Tensor

from kernels.tensors import Address, address

_KINDS = {torch.float32: 0, torch.bfloat16: 1}
MAX_HEAD_DIM = 256


class KvCacheStruct(ctypes.Structure):
    """As struct KvCache in native.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("keys", Address),
        ("values", Address),
    )


def kv_cache_struct(key_cache: Tensor, value_cache: Tensor) -> KvCacheStruct:
    # key_cache [num_blocks, num_kv_heads, block_size, head_dim], its last two dimensions exchanged in memory
    """The pages for C++, which must not outlive the tensors."""
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    if head_dim > MAX_HEAD_DIM or head_dim % 2:
        raise ValueError(f"head_dim must be even and at most {MAX_HEAD_DIM}, not {head_dim}")
    return KvCacheStruct(
        _KINDS[key_cache.dtype],
        num_kv_heads,
        block_size,
        head_dim,
        address(key_cache.transpose(2, 3), key_cache.dtype),
        address(value_cache, key_cache.dtype),
    )


def kv_write(
    library: ctypes.CDLL,
    qkv: Tensor,
    *,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> Tensor:
    """As reference.kv_write, in float32 over caches of pages.new_pages."""
    num_tokens, head_dim = qkv.shape[0], key_cache.shape[3]
    num_heads = qkv.shape[1] // head_dim - 2 * key_cache.shape[1]
    query = torch.empty(num_tokens, num_heads, head_dim)
    library.sluice_kv_write(
        address(qkv.contiguous()),
        ctypes.c_int(num_tokens),
        ctypes.c_int(num_heads),
        address(cos.contiguous()),
        address(sin.contiguous()),
        address(slots.contiguous(), torch.int64),
        ctypes.byref(kv_cache_struct(key_cache, value_cache)),
        address(query),
    )
    return query
