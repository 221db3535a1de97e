"""Causal attention over paged keys and values, for sequences of any mix of lengths.

`plan_attention` is called once a step and `paged_attention` once a layer, because what a step's rows look at
is the same in every layer.
"""

from torch import Tensor

from kernels import native as native_library
from kernels.kv_write.pages import are_native
from kernels.paged_attention import native, reference
from kernels.paged_attention.batch import RaggedBatch
from kernels.paged_attention.gather_plan import GatherPlan, plan_gathers

__all__ = ["AttentionPlan", "RaggedBatch", "paged_attention", "plan_attention"]

AttentionPlan = GatherPlan | RaggedBatch


def plan_attention(batch: RaggedBatch, key_cache: Tensor) -> AttentionPlan:
    """What `paged_attention` needs to know of `batch`, for caches shaped and placed like `key_cache`."""
    return batch if key_cache.is_cuda or are_native(key_cache) else plan_gathers(batch, key_cache)


def paged_attention(
    query: Tensor,  # [num_tokens, num_heads, head_dim]
    key_cache: Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    value_cache: Tensor,  # as key_cache
    plan: AttentionPlan,
    *,
    scale: float,
) -> Tensor:  # [num_tokens, num_heads, head_dim]
    """Attention of each query to its own sequence's positions up to its own; see reference.py."""
    if isinstance(plan, GatherPlan):
        return reference.paged_attention(query, key_cache, value_cache, plan, scale=scale)
    library = native_library.library()
    if library is not None and are_native(key_cache):
        return native.paged_attention(library, query, key_cache, value_cache, plan, scale=scale)
    # Here and not above: Triton is not installed where there is no GPU.
    from kernels.paged_attention import triton_kernel

    return triton_kernel.paged_attention(query, key_cache, value_cache, plan, scale=scale)
