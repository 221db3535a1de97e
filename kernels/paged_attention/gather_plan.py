"""Where the CPU's attention finds its keys: gather indices and masks, made once a step for every layer.

Decode rows of similar length are answered together from padded copies of their pages; a prefill chunk alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_attention.batch import RaggedBatch

_GROUP_BYTES = 2 << 20
"""Keys that one group may gather: small enough that the copy is still in a core's cache when it is read."""


@dataclass(frozen=True, kw_only=True)
class DecodeGroup:
    """Decode rows that are attended together, each padded to the longest one's pages.

    A tile is one head's part of a block. `unwritten` lists the gathered rows past a sequence's end, which may
    hold anything, NaN included.
    """

    rows: Tensor  # [size] int64, tokens of the step
    tiles: Tensor  # [size * num_kv_heads * num_pages] int64
    mask: Tensor  # [size, 1, 1, num_pages * block_size], 0 or -inf
    unwritten: Tensor  # [any] int64, rows of the gathered [size * num_kv_heads * num_pages * block_size, ...]


@dataclass(frozen=True, kw_only=True)
class PrefillChunk:
    """The queries of one sequence, `first` up to `last` of the step's tokens."""

    first: int
    last: int
    seq_len: int
    tiles: Tensor  # [num_kv_heads * num_pages] int64
    mask: Tensor | None  # [last - first, seq_len], 0 or -inf; None where the chunk starts at position 0


@dataclass(frozen=True, kw_only=True)
class GatherPlan:
    """All of one step's attention.

    Every group and chunk gathers into the same two buffers: fresh ones would cost more in page faults than
    the copying itself.
    """

    decode_groups: tuple[DecodeGroup, ...]
    prefill_chunks: tuple[PrefillChunk, ...]
    key_buffer: Tensor  # [most tiles, block_size * head_dim]
    value_buffer: Tensor  # as key_buffer


def plan_gathers(batch: RaggedBatch, key_cache: Tensor) -> GatherPlan:
    # key_cache [num_blocks, num_kv_heads, block_size, head_dim]
    """The gathers that `batch` needs from caches shaped like `key_cache`."""
    starts: list[int] = batch.query_start_loc.tolist()
    seq_lens: list[int] = batch.seq_lens.tolist()
    decodes = [i for i in range(len(seq_lens)) if starts[i + 1] - starts[i] == 1]
    prefills = [i for i in range(len(seq_lens)) if starts[i + 1] - starts[i] > 1]
    page_bytes = key_cache[0].numel() * key_cache.itemsize
    groups = _groups_of_similar_length(
        decodes, seq_lens, block_size=key_cache.shape[2], max_pages=_GROUP_BYTES // page_bytes
    )
    decode_groups = tuple(_decode_group(batch, members, key_cache) for members in groups)
    prefill_chunks = tuple(
        _prefill_chunk(batch.block_tables[i], starts[i], starts[i + 1], seq_lens[i], key_cache)
        for i in prefills
    )
    tiles = [group.tiles for group in decode_groups] + [chunk.tiles for chunk in prefill_chunks]
    most_tiles = max(len(some) for some in tiles)
    tile_size = key_cache.shape[2] * key_cache.shape[3]
    return GatherPlan(
        decode_groups=decode_groups,
        prefill_chunks=prefill_chunks,
        key_buffer=key_cache.new_empty(most_tiles, tile_size),
        value_buffer=key_cache.new_empty(most_tiles, tile_size),
    )


def _groups_of_similar_length(
    decodes: Sequence[int], seq_lens: Sequence[int], *, block_size: int, max_pages: int
) -> Iterator[list[int]]:
    """Longest first; a group ends where padding would double a row, or past `max_pages`."""
    group: list[int] = []
    for i in sorted(decodes, key=lambda i: -seq_lens[i]):
        if group:
            num_pages = math.ceil(seq_lens[group[0]] / block_size)
            is_full = (len(group) + 1) * num_pages > max_pages
            if is_full or math.ceil(seq_lens[i] / block_size) * 2 < num_pages:
                yield group
                group = []
        group.append(i)
    if group:
        yield group


def _decode_group(batch: RaggedBatch, members: list[int], key_cache: Tensor) -> DecodeGroup:
    _, num_kv_heads, block_size, _ = key_cache.shape
    device = key_cache.device
    chosen = torch.tensor(members, device=device)
    seq_lens = batch.seq_lens[chosen].long()
    num_pages = math.ceil(int(seq_lens[0]) / block_size)
    pages = torch.arange(num_pages, device=device)
    tables = batch.block_tables[chosen, :num_pages].long()
    own_page = pages * block_size < seq_lens.unsqueeze(1)
    blocks = torch.where(own_page, tables, tables[:, :1])  # padding reads a page that certainly exists
    is_past_end = torch.arange(num_pages * block_size, device=device) >= seq_lens.unsqueeze(1)
    unwritten = is_past_end.unsqueeze(1).expand(-1, num_kv_heads, -1)
    mask = torch.zeros(is_past_end.shape, dtype=key_cache.dtype, device=device)
    return DecodeGroup(
        rows=batch.query_start_loc[chosen].long(),
        tiles=_tiles(blocks, num_kv_heads).flatten(),
        mask=mask.masked_fill_(is_past_end, -math.inf).view(len(members), 1, 1, -1),
        unwritten=unwritten.reshape(-1).nonzero().flatten(),
    )


def _prefill_chunk(table: Tensor, first: int, last: int, seq_len: int, key_cache: Tensor) -> PrefillChunk:
    _, num_kv_heads, block_size, _ = key_cache.shape
    blocks = table[: math.ceil(seq_len / block_size)].long()
    tiles = _tiles(blocks.unsqueeze(0), num_kv_heads).flatten()
    mask = None
    if seq_len > last - first:
        mask = torch.full((last - first, seq_len), -math.inf, dtype=key_cache.dtype, device=key_cache.device)
        mask = mask.triu_(diagonal=seq_len - (last - first) + 1)
    return PrefillChunk(first=first, last=last, seq_len=seq_len, tiles=tiles, mask=mask)


def _tiles(blocks: Tensor, num_kv_heads: int) -> Tensor:
    # blocks [size, num_pages] int64 -> [size, num_kv_heads, num_pages]
    heads = torch.arange(num_kv_heads, device=blocks.device)
    return blocks.unsqueeze(1) * num_kv_heads + heads.view(1, -1, 1)
