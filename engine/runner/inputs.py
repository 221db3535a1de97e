"""A step plan as tensors: every row's tokens laid end to end. Knows layouts, not the model."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from engine.core.step import PlannedRow
from engine.models.layers import StepInputs
from kernels.paged_attention import RaggedBatch, plan_attention


def build_inputs(rows: Sequence[PlannedRow], key_cache: Tensor) -> StepInputs:
    # key_cache [num_blocks, num_kv_heads, block_size, head_dim]: any layer's, for its shape and device
    """The inputs of a step over `rows`, of which there is at least one and none is empty."""
    block_size, device = key_cache.shape[2], key_cache.device
    starts = np.array([row.start for row in rows])
    query_lens = np.array([len(row.token_ids) for row in rows])
    query_start_loc = np.concatenate([[0], query_lens.cumsum()])
    seq_lens = starts + query_lens
    tables = _block_tables(rows, -(-seq_lens // block_size))
    positions = np.arange(query_start_loc[-1]) + np.repeat(starts - query_start_loc[:-1], query_lens)
    row_of_token = np.repeat(np.arange(len(rows)), query_lens)
    slots = tables[row_of_token, positions // block_size] * np.int64(block_size) + positions % block_size
    token_ids = np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int64, len(positions))
    batch = RaggedBatch(
        query_start_loc=_on(device, query_start_loc.astype(np.int32)),
        seq_lens=_on(device, seq_lens.astype(np.int32)),
        block_tables=_on(device, tables),
        max_query_len=int(query_lens.max()),
    )
    return StepInputs(
        token_ids=_on(device, token_ids),
        positions=_on(device, positions),
        slots=_on(device, slots),
        attention=plan_attention(batch, key_cache),
    )


def sampled_tokens(rows: Sequence[PlannedRow], device: torch.device) -> Tensor:
    # -> [num_sampled] int64
    """The index, among the step's tokens, of the last token of each row that samples."""
    last = np.cumsum([len(row.token_ids) for row in rows], dtype=np.int64) - 1
    return _on(device, last[[row.sampling is not None for row in rows]])


def _block_tables(rows: Sequence[PlannedRow], num_blocks: np.ndarray) -> np.ndarray:
    # -> [num_rows, max_num_blocks] int32, zero past the blocks that hold each row's positions
    tables = np.zeros((len(rows), num_blocks.max()), dtype=np.int32)
    is_own = np.arange(tables.shape[1]) < num_blocks[:, None]
    own = (row.block_table[:count] for row, count in zip(rows, num_blocks.tolist(), strict=True))
    tables[is_own] = np.fromiter(chain.from_iterable(own), np.int32, num_blocks.sum())
    return tables


def _on(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(device)
