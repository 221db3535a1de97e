"""A step plan as tensors: every row's tokens laid end to end. Knows layouts, not the model."""

from collections.abc import Sequence
from itertools import accumulate

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
    positions = np.concatenate([_positions(row) for row in rows])
    slots = np.concatenate([_slots(row, block_size) for row in rows])
    token_ids = [token_id for row in rows for token_id in row.token_ids]
    return StepInputs(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
        attention=plan_attention(_ragged_batch(rows, block_size, device), key_cache),
    )


def sampled_token_rows(rows: Sequence[PlannedRow]) -> list[int]:
    """The index, among the step's tokens, of the last token of each row that samples."""
    ends = accumulate(len(row.token_ids) for row in rows)
    return [end - 1 for row, end in zip(rows, ends, strict=True) if row.sampling is not None]


def _seq_len(row: PlannedRow) -> int:
    return row.start + len(row.token_ids)


def _num_blocks(row: PlannedRow, block_size: int) -> int:
    """Blocks that hold the row's positions; its table may already be longer."""
    return -(-_seq_len(row) // block_size)


def _positions(row: PlannedRow) -> np.ndarray:
    return np.arange(row.start, _seq_len(row), dtype=np.int64)


def _slots(row: PlannedRow, block_size: int) -> np.ndarray:
    positions = _positions(row)
    first_block = row.start // block_size
    blocks = np.array(row.block_table[first_block : _num_blocks(row, block_size)], dtype=np.int64)
    return blocks[positions // block_size - first_block] * block_size + positions % block_size


def _ragged_batch(rows: Sequence[PlannedRow], block_size: int, device: torch.device) -> RaggedBatch:
    query_lens = [len(row.token_ids) for row in rows]
    return RaggedBatch(
        query_start_loc=torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([_seq_len(row) for row in rows], dtype=torch.int32, device=device),
        block_tables=torch.from_numpy(_block_tables(rows, block_size)).to(device),
        max_query_len=max(query_lens),
    )


def _block_tables(rows: Sequence[PlannedRow], block_size: int) -> np.ndarray:
    # -> [num_rows, max_num_blocks] int32, zero past each row's own blocks
    num_blocks = [_num_blocks(row, block_size) for row in rows]
    tables = np.zeros((len(rows), max(num_blocks)), dtype=np.int32)
    for index, (row, count) in enumerate(zip(rows, num_blocks, strict=True)):
        tables[index, :count] = row.block_table[:count]
    return tables
