"""The Triton paged_attention equals the reference, over caches that are NaN wherever nothing was written."""

import pytest
import torch

from kernels.paged_attention import reference, triton_kernel
from kernels.paged_attention.gather_plan import plan_gathers
from tests.builders.paged_cache import AWKWARD_LENGTHS, AttentionCase, fill_cache

MIXED = AWKWARD_LENGTHS[4]

CASES = [
    *(AttentionCase(lengths=lengths) for lengths in AWKWARD_LENGTHS),
    *(AttentionCase(lengths=MIXED, group_size=group_size, seed=group_size) for group_size in (1, 4, 5)),
    *(AttentionCase(lengths=MIXED, head_dim=head_dim, num_kv_heads=1) for head_dim in (64, 80)),
    AttentionCase(lengths=MIXED, block_size=32),
    AttentionCase(lengths=MIXED, head_dim=64, num_kv_heads=1, dtype=torch.float16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_reference(case: AttentionCase) -> None:
    filled = fill_cache(case)
    caches = (filled.key_cache, filled.value_cache)
    plan = plan_gathers(filled.batch, filled.key_cache)
    expected = reference.paged_attention(filled.query, *caches, plan, scale=filled.scale)
    actual = triton_kernel.paged_attention(filled.query, *caches, filled.batch, scale=filled.scale)
    tolerance = 1e-5 if case.dtype == torch.float32 else 4e-3
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
