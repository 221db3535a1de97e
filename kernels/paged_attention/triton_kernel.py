"""Paged attention as one Triton launch; reference.py says what it computes.

One program answers a tile of queries of one sequence for one key head. The query heads that share the key
head are packed into the rows of the tile, so that every key is read once for all of them.
"""

# mypy: disable-error-code="no-untyped-def"
# (a kernel's arguments have no types until Triton specialises it)

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paged_attention.batch import RaggedBatch

MIN_TILE_ROWS = 16
"""Tensor cores take no fewer rows; the interpreter would accept less and so hide the mistake."""

KEYS_PER_STEP = 32
LOG2_E = 1.4426950408889634


@triton.jit
def paged_attention_kernel(
    query_ptr,  # [num_tokens, num_heads, HEAD_DIM]
    key_cache_ptr,  # [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM]
    value_cache_ptr,
    output_ptr,  # as query
    query_start_loc_ptr,  # [num_seqs + 1] int32
    seq_lens_ptr,  # [num_seqs] int32
    block_tables_ptr,  # [num_seqs, max_num_blocks] int32
    scale_log2,  # the softmax scale times log2(e), so that exp2 serves
    query_token_stride,
    block_table_stride,
    num_kv_heads,
    GROUP_SIZE: tl.constexpr,  # query heads per key head
    HEAD_DIM: tl.constexpr,
    PADDED_HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    UPCAST: tl.constexpr,  # float32 products: the interpreter computes bfloat16 wrongly
):
    TILE_TOKENS: tl.constexpr = TILE_ROWS // GROUP_SIZE
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    first_token = tl.program_id(2) * TILE_TOKENS

    query_start = tl.load(query_start_loc_ptr + sequence)
    query_len = tl.load(query_start_loc_ptr + sequence + 1) - query_start
    if first_token >= query_len:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)

    # Row r of the tile is query head r % GROUP_SIZE of token r // GROUP_SIZE.
    rows = tl.arange(0, TILE_ROWS)
    dims = tl.arange(0, PADDED_HEAD_DIM)
    tokens = first_token + rows // GROUP_SIZE
    heads = kv_head * GROUP_SIZE + rows % GROUP_SIZE
    is_row = (rows < TILE_TOKENS * GROUP_SIZE) & (tokens < query_len)
    positions = seq_len - query_len + tokens
    row_mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    token_offsets = (query_start + tokens).to(tl.int64) * query_token_stride
    query_offsets = token_offsets[:, None] + heads[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(query_ptr + query_offsets, mask=row_mask, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    running_max = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    running_sum = tl.zeros([TILE_ROWS], tl.float32)
    accumulated = tl.zeros([TILE_ROWS, PADDED_HEAD_DIM], tl.float32)

    end = tl.minimum(seq_len, seq_len - query_len + first_token + TILE_TOKENS)
    for first_key in range(0, end, TILE_KEYS):
        keys = first_key + tl.arange(0, TILE_KEYS)
        is_key = keys < end  # masks the loads too: a page's tail may hold NaN, and 0 * NaN is NaN
        table_offsets = sequence.to(tl.int64) * block_table_stride + keys // BLOCK_SIZE
        blocks = tl.load(block_tables_ptr + table_offsets, mask=is_key, other=0).to(tl.int64)
        slots = (blocks * num_kv_heads + kv_head) * BLOCK_SIZE + keys % BLOCK_SIZE
        kv_offsets = slots[:, None] * HEAD_DIM + dims[None, :]
        kv_mask = is_key[:, None] & (dims < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + kv_offsets, mask=kv_mask, other=0.0)
        value = tl.load(value_cache_ptr + kv_offsets, mask=kv_mask, other=0.0)
        if UPCAST:
            key = key.to(tl.float32)
            value = value.to(tl.float32)

        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_log2
        is_visible = is_key[None, :] & (keys[None, :] <= positions[:, None])
        scores = tl.where(is_visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)  # -inf - -inf would be NaN
        weights = tl.exp2(scores - safe_max[:, None])
        decay = tl.exp2(running_max - safe_max)
        running_sum = running_sum * decay + tl.sum(weights, axis=1)
        products = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        accumulated = accumulated * decay[:, None] + products
        running_max = new_max

    attended = accumulated / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
    output_offsets = (query_start + tokens).to(tl.int64)[:, None] * (num_kv_heads * GROUP_SIZE * HEAD_DIM)
    output_offsets += heads[:, None] * HEAD_DIM + dims[None, :]
    tl.store(output_ptr + output_offsets, attended.to(output_ptr.dtype.element_ty), mask=row_mask)


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: RaggedBatch, *, scale: float
) -> Tensor:
    """As reference.paged_attention, from the batch itself: the kernel looks pages up as it goes."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    num_tokens, num_heads, _ = query.shape
    group_size = num_heads // num_kv_heads
    tile_rows = max(MIN_TILE_ROWS, triton.next_power_of_2(group_size))
    assert query.stride()[1:] == (head_dim, 1)
    assert key_cache.is_contiguous()
    assert value_cache.is_contiguous()
    output = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    num_tiles = triton.cdiv(batch.max_query_len, tile_rows // group_size)
    paged_attention_kernel[(batch.seq_lens.shape[0], num_kv_heads, num_tiles)](
        query,
        key_cache,
        value_cache,
        output,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        scale * LOG2_E,
        query.stride(0),
        batch.block_tables.stride(0),
        num_kv_heads,
        GROUP_SIZE=group_size,
        HEAD_DIM=head_dim,
        PADDED_HEAD_DIM=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        TILE_ROWS=tile_rows,
        TILE_KEYS=KEYS_PER_STEP,
        UPCAST=query.dtype == torch.float32 or not query.is_cuda,
    )
    return output
