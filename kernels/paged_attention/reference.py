"""Causal attention over paged keys and values in plain PyTorch. Knows no models and no scheduling."""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.paged_attention.gather_plan import DecodeGroup, GatherPlan, PrefillChunk


def paged_attention(
    query: Tensor,  # [num_tokens, num_heads, head_dim]
    key_cache: Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    value_cache: Tensor,  # as key_cache
    plan: GatherPlan,
    *,
    scale: float,
) -> Tensor:  # [num_tokens, num_heads, head_dim]
    """Each query attends to its own sequence's positions up to its own.

    Query head h reads key head `h // (num_heads / num_kv_heads)`. Slots that no position stands in are never
    looked at, whatever they hold.
    """
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    for group in plan.decode_groups:
        output.index_copy_(0, group.rows, _attend_decodes(query, key_cache, value_cache, group, scale))
    for chunk in plan.prefill_chunks:
        output[chunk.first : chunk.last] = _attend_chunk(query, key_cache, value_cache, chunk, scale)
    return output


def _attend_decodes(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, group: DecodeGroup, scale: float
) -> Tensor:
    """The query heads of one key head stand in the length dimension, so that its keys are read once."""
    num_rows, (_, num_kv_heads, _, head_dim) = group.rows.shape[0], key_cache.shape
    shape = (num_rows, num_kv_heads, -1, head_dim)
    attended = functional.scaled_dot_product_attention(
        query.index_select(0, group.rows).view(shape),
        _gather_written(key_cache, group).view(shape),
        _gather_written(value_cache, group).view(shape),
        attn_mask=group.mask,
        scale=scale,
    )
    return attended.reshape(num_rows, -1, head_dim)


def _gather_written(cache: Tensor, group: DecodeGroup) -> Tensor:
    """Zero where nothing was written: a mask alone would leave 0 * NaN = NaN."""
    rows = _gather(cache, group.tiles).view(-1, cache.shape[3])
    return rows.index_fill_(0, group.unwritten, 0)


def _attend_chunk(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, chunk: PrefillChunk, scale: float
) -> Tensor:
    num_tokens, (_, num_kv_heads, _, head_dim) = chunk.last - chunk.first, key_cache.shape
    packed = query[chunk.first : chunk.last].view(num_tokens, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    kv_shape = (num_kv_heads, packed.shape[1], chunk.seq_len, head_dim)
    attended = functional.scaled_dot_product_attention(
        packed,
        _gather_exactly(key_cache, chunk).unsqueeze(1).expand(kv_shape),
        _gather_exactly(value_cache, chunk).unsqueeze(1).expand(kv_shape),
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        scale=scale,
    )
    return attended.permute(2, 0, 1, 3).reshape(num_tokens, -1, head_dim)


def _gather_exactly(cache: Tensor, chunk: PrefillChunk) -> Tensor:
    pages = _gather(cache, chunk.tiles).view(cache.shape[1], -1, cache.shape[3])
    return pages[:, : chunk.seq_len]


def _gather(cache: Tensor, tiles: Tensor) -> Tensor:
    # -> [num_tiles, block_size * head_dim]
    num_blocks, num_kv_heads, block_size, head_dim = cache.shape
    return cache.view(num_blocks * num_kv_heads, block_size * head_dim).index_select(0, tiles)
