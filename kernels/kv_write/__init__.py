"""Rotary embedding and the paged write of keys and values, in one operator."""

from torch import Tensor

from kernels import native as native_library
from kernels.kv_write import native, reference
from kernels.kv_write.pages import are_native, new_pages

__all__ = ["kv_write", "new_pages"]


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

    What it computes exactly is written at its twin in reference.py.
    """
    if qkv.is_cuda:
        # Here and not above: Triton is not installed where there is no GPU.
        from kernels.kv_write import triton_kernel

        return triton_kernel.kv_write(
            qkv, cos=cos, sin=sin, slots=slots, key_cache=key_cache, value_cache=value_cache
        )
    library = native_library.library()
    if library is not None and are_native(key_cache):
        return native.kv_write(
            library, qkv, cos=cos, sin=sin, slots=slots, key_cache=key_cache, value_cache=value_cache
        )
    return reference.kv_write(
        qkv, cos=cos, sin=sin, slots=slots, key_cache=key_cache, value_cache=value_cache
    )
