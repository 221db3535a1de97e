"""Paged attention against its definition, on the CPU."""

import pytest
import torch

from kernels.paged_attention import paged_attention, plan_attention
from tests.builders.paged_cache import AWKWARD_LENGTHS, AttentionCase, dense_attention, fill_cache


def attend(case: AttentionCase) -> tuple[torch.Tensor, torch.Tensor]:
    filled = fill_cache(case)
    plan = plan_attention(filled.batch, filled.key_cache)
    output = paged_attention(filled.query, filled.key_cache, filled.value_cache, plan, scale=filled.scale)
    return output.double(), dense_attention(filled)


@pytest.mark.parametrize("lengths", AWKWARD_LENGTHS, ids=str)
@pytest.mark.parametrize("group_size", [1, 3, 4, 5])
def test_equals_the_definition_over_a_cache_full_of_nan(
    lengths: tuple[tuple[int, int], ...], group_size: int
) -> None:
    output, expected = attend(AttentionCase(lengths=lengths, group_size=group_size))
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equals_the_definition_in_every_type_and_head_size(head_dim: int, dtype: torch.dtype) -> None:
    output, expected = attend(AttentionCase(lengths=((1, 40), (5, 21)), head_dim=head_dim, dtype=dtype))
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)


def test_decode_rows_of_very_different_lengths_are_each_exact() -> None:
    lengths = tuple((1, seq_len) for seq_len in (700, 3, 350, 16, 90, 1, 699, 33))
    output, expected = attend(AttentionCase(lengths=lengths))
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_a_row_is_the_same_alone_and_in_company() -> None:
    alone, _ = attend(AttentionCase(lengths=((1, 40),)))
    filled = fill_cache(AttentionCase(lengths=((1, 40), (1, 75), (9, 30))))
    lonely = fill_cache(AttentionCase(lengths=((1, 40),)))
    positions = torch.arange(40)
    blocks = filled.batch.block_tables[0, positions // 16].long()
    filled.key_cache[blocks, :, positions % 16] = lonely.keys[0]
    filled.value_cache[blocks, :, positions % 16] = lonely.values[0]
    filled.query[0] = lonely.query[0]
    plan = plan_attention(filled.batch, filled.key_cache)
    together = paged_attention(filled.query, filled.key_cache, filled.value_cache, plan, scale=filled.scale)
    torch.testing.assert_close(together[0].double(), alone[0], atol=1e-6, rtol=1e-6)
