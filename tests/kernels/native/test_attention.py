"""Native paged attention against its definition, and the same bits however a context is cut up."""

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.paged_attention import RaggedBatch
from kernels.paged_attention.native import paged_attention
from tests.builders.paged_cache import (
    AWKWARD_LENGTHS,
    AttentionCase,
    FilledCache,
    dense_attention,
    fill_cache,
)

LONG = ((1, 511), (1, 512), (1, 513), (1, 1500), (130, 700), (1, 3))


def attend(library: ctypes.CDLL, filled: FilledCache) -> Tensor:
    return paged_attention(
        library,
        filled.query.float(),
        in_native_order(filled.key_cache),
        filled.value_cache,
        filled.batch,
        scale=filled.scale,
    )


def in_native_order(keys: Tensor) -> Tensor:
    return keys.transpose(2, 3).contiguous().transpose(2, 3)


def check(library: ctypes.CDLL, case: AttentionCase, tolerance: float = 2e-5) -> None:
    filled = fill_cache(case)
    output = attend(library, filled)
    torch.testing.assert_close(output.double(), dense_attention(filled), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lengths", AWKWARD_LENGTHS, ids=str)
@pytest.mark.parametrize("group_size", [1, 3, 4, 7, 8])
def test_equals_the_definition_over_a_cache_full_of_nan(
    library: ctypes.CDLL, lengths: tuple[tuple[int, int], ...], group_size: int
) -> None:
    check(library, AttentionCase(lengths=lengths, group_size=group_size))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("block_size", [1, 7, 16, 32, 48])
def test_equals_the_definition_in_every_head_and_block_size(
    library: ctypes.CDLL, head_dim: int, block_size: int
) -> None:
    check(
        library,
        AttentionCase(lengths=((1, 40), (5, 127), (63, 63)), head_dim=head_dim, block_size=block_size),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_the_definition_over_contexts_that_are_cut(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    check(library, AttentionCase(lengths=LONG, block_size=32, head_dim=64, dtype=dtype))


def test_a_token_is_the_same_in_a_chunk_and_alone(library: ctypes.CDLL) -> None:
    """The last token of a chunk, and the same one as a decode row: other work items, the same bits."""
    filled = fill_cache(AttentionCase(lengths=((90, 1200),), block_size=32, head_dim=64))
    in_chunk = attend(library, filled)[-1]
    batch = replace(filled.batch, query_start_loc=torch.tensor([0, 1], dtype=torch.int32))
    alone = attend(library, replace(filled, batch=batch, query=filled.query[-1:]))[0]
    assert torch.equal(in_chunk, alone)


def test_the_number_of_threads_changes_no_bit(library: ctypes.CDLL) -> None:
    filled = fill_cache(AttentionCase(lengths=LONG, block_size=32, head_dim=64))
    outputs = []
    for count in (1, 2, 3):
        library.sluice_set_num_threads(ctypes.c_int(count))
        outputs.append(attend(library, filled))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_table_that_is_wider_than_its_sequences_is_read_by_its_own_stride(library: ctypes.CDLL) -> None:
    filled = fill_cache(AttentionCase(lengths=((1, 40), (1, 17))))
    wide = torch.full((2, 100), -1, dtype=torch.int32)
    wide[:, : filled.batch.block_tables.shape[1]] = filled.batch.block_tables
    batch: RaggedBatch = replace(filled.batch, block_tables=wide)
    assert torch.equal(attend(library, filled), attend(library, replace(filled, batch=batch)))
