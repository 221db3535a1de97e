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
    num_kv_heads = key_cache.shape[1]
    for group in plan.decode_groups:
        keys = _gather_written(key_cache, group, plan.key_buffer).to(query.dtype)
        values = _gather_written(value_cache, group, plan.value_buffer).to(query.dtype)
        rows = query.index_select(0, group.rows)
        output.index_copy_(0, group.rows, _attend_decodes(rows, keys, values, group, num_kv_heads, scale))
    for chunk in plan.prefill_chunks:
        keys = _gather_exactly(key_cache, chunk, plan.key_buffer).to(query.dtype)
        values = _gather_exactly(value_cache, chunk, plan.value_buffer).to(query.dtype)
        rows = query[chunk.first : chunk.last]
        output[chunk.first : chunk.last] = _attend_chunk(rows, keys, values, chunk, scale)
    return output


def _attend_decodes(
    query: Tensor, keys: Tensor, values: Tensor, group: DecodeGroup, num_kv_heads: int, scale: float
) -> Tensor:
    # query [size, num_heads, head_dim], keys and values [gathered rows, head_dim] -> as query
    """The query heads of one key head stand in the length dimension, so that its keys are read once."""
    shape = (query.shape[0], num_kv_heads, -1, query.shape[2])
    attended = functional.scaled_dot_product_attention(
        query.view(shape),
        keys.view(shape),
        values.view(shape),
        attn_mask=group.mask.to(query.dtype),
        scale=scale,
    )
    return attended.reshape(query.shape)


def _attend_chunk(query: Tensor, keys: Tensor, values: Tensor, chunk: PrefillChunk, scale: float) -> Tensor:
    # query [num_tokens, num_heads, head_dim], keys and values [num_kv_heads, seq_len, head_dim] -> as query
    num_kv_heads, seq_len, head_dim = keys.shape
    packed = query.view(query.shape[0], num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    kv_shape = (num_kv_heads, packed.shape[1], seq_len, head_dim)
    attended = functional.scaled_dot_product_attention(
        packed,
        keys.unsqueeze(1).expand(kv_shape),
        values.unsqueeze(1).expand(kv_shape),
        attn_mask=None if chunk.mask is None else chunk.mask.to(query.dtype),
        is_causal=chunk.mask is None,
        scale=scale,
    )
    return attended.permute(2, 0, 1, 3).reshape(query.shape)


def _gather_written(cache: Tensor, group: DecodeGroup, buffer: Tensor) -> Tensor:
    # -> [gathered rows, head_dim]
    """Zero where nothing was written: a mask alone would leave 0 * NaN = NaN."""
    rows = _gather(cache, group.tiles, buffer).view(-1, cache.shape[3])
    return rows.index_fill_(0, group.unwritten, 0)


def _gather_exactly(cache: Tensor, chunk: PrefillChunk, buffer: Tensor) -> Tensor:
    # -> [num_kv_heads, seq_len, head_dim]
    pages = _gather(cache, chunk.tiles, buffer).view(cache.shape[1], -1, cache.shape[3])
    return pages[:, : chunk.seq_len]


def _gather(cache: Tensor, tiles: Tensor, buffer: Tensor) -> Tensor:
    # -> [num_tiles, block_size * head_dim], the first rows of `buffer`
    all_tiles = cache.view(-1, buffer.shape[1])
    return torch.index_select(all_tiles, 0, tiles, out=buffer[: tiles.shape[0]])
