"""Paged caches filled at random, NaN where nothing was written, and what attention over them should give."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_attention import RaggedBatch


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """Sequences given as (query length, sequence length), and the heads they are attended with."""

    lengths: tuple[tuple[int, int], ...]
    num_kv_heads: int = 2
    group_size: int = 3
    head_dim: int = 16
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class FilledCache:
    """One case's tensors: queries laid end to end, caches, and each sequence's keys and values unpaged."""

    case: AttentionCase
    batch: RaggedBatch
    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    keys: tuple[Tensor, ...]  # each [seq_len, num_kv_heads, head_dim]
    values: tuple[Tensor, ...]

    @property
    def scale(self) -> float:
        """The usual softmax scale."""
        return 1 / math.sqrt(self.case.head_dim)


def fill_cache(case: AttentionCase) -> FilledCache:
    """Random keys and values in randomly chosen blocks; every other slot, and every spare block, is NaN."""
    generator = torch.Generator().manual_seed(case.seed)
    num_blocks = [math.ceil(seq_len / case.block_size) for _, seq_len in case.lengths]
    total_blocks = sum(num_blocks) + 3
    order = torch.randperm(total_blocks, generator=generator).tolist()
    shape = (total_blocks, case.num_kv_heads, case.block_size, case.head_dim)
    key_cache, value_cache = (torch.full(shape, math.nan, dtype=case.dtype) for _ in range(2))
    tables = torch.full((len(case.lengths), max(num_blocks)), order[-1], dtype=torch.int32)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for index, (_, seq_len) in enumerate(case.lengths):
        table = torch.tensor([order.pop(0) for _ in range(num_blocks[index])])
        tables[index, : len(table)] = table
        for cache, rows in ((key_cache, keys), (value_cache, values)):
            row = torch.randn(seq_len, case.num_kv_heads, case.head_dim, generator=generator).to(case.dtype)
            positions = torch.arange(seq_len)
            cache[table[positions // case.block_size], :, positions % case.block_size] = row
            rows.append(row)
    query_lens = torch.tensor([query_len for query_len, _ in case.lengths])
    num_heads = case.num_kv_heads * case.group_size
    query = torch.randn(int(query_lens.sum()), num_heads, case.head_dim, generator=generator).to(case.dtype)
    return FilledCache(
        case=case,
        batch=RaggedBatch(
            query_start_loc=torch.cat([torch.zeros(1), query_lens.cumsum(0)]).int(),
            seq_lens=torch.tensor([seq_len for _, seq_len in case.lengths], dtype=torch.int32),
            block_tables=tables,
            max_query_len=int(query_lens.max()),
        ),
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        keys=tuple(keys),
        values=tuple(values),
    )


def dense_attention(filled: FilledCache) -> Tensor:
    # -> [num_tokens, num_heads, head_dim] float64
    """The answer by the definition: one query at a time, over its own sequence's unpaged keys, in float64."""
    outputs = []
    queries = iter(filled.query.double())
    for (query_len, seq_len), *cached in zip(filled.case.lengths, filled.keys, filled.values, strict=True):
        keys, values = (x.double().repeat_interleave(filled.case.group_size, dim=1) for x in cached)
        for num_seen in range(seq_len - query_len + 1, seq_len + 1):
            scores = torch.einsum("hd,nhd->hn", next(queries), keys[:num_seen]) * filled.scale
            outputs.append(torch.einsum("hn,nhd->hd", scores.softmax(dim=-1), values[:num_seen]))
    return torch.stack(outputs)


AWKWARD_LENGTHS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((1, 1),),
    ((1, 16),),
    ((16, 16),),
    ((1, 17), (1, 1), (1, 32)),
    ((1, 5), (1, 47), (7, 7), (3, 33)),
    ((1, 31), (16, 48), (17, 17), (1, 1)),
)
"""Length 1, exactly one block, one past it, no multiple; decodes and chunks alone and mixed."""


@dataclass(frozen=True, kw_only=True)
class KvWriteCase:
    """Random rows to rotate and write, one per token."""

    num_tokens: int
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """The arguments of kv_write by name; the caches are NaN."""
        generator = torch.Generator().manual_seed(self.seed)
        num_blocks = self.num_tokens // self.block_size + 3
        cache_shape = (num_blocks, self.num_kv_heads, self.block_size, self.head_dim)
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        angles = torch.rand(self.num_tokens, self.head_dim // 2, generator=generator) * 6
        return {
            "qkv": torch.randn(self.num_tokens, width, generator=generator).to(self.dtype),
            "cos": torch.cat([angles.cos(), angles.cos()], dim=1),
            "sin": torch.cat([-angles.sin(), angles.sin()], dim=1),
            "slots": torch.randperm(num_blocks * self.block_size, generator=generator)[: self.num_tokens],
            "key_cache": torch.full(cache_shape, math.nan, dtype=self.dtype),
            "value_cache": torch.full(cache_shape, math.nan, dtype=self.dtype),
        }
