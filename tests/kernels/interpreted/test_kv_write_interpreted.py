"""The Triton kv_write equals the reference."""

import pytest
import torch

from kernels.kv_write import reference, triton_kernel
from tests.builders.paged_cache import KvWriteCase


@pytest.mark.parametrize(
    "case",
    [
        KvWriteCase(num_tokens=1),
        KvWriteCase(num_tokens=16, num_heads=2),
        KvWriteCase(num_tokens=5, num_heads=8, head_dim=64, dtype=torch.float16),
        KvWriteCase(num_tokens=3, num_heads=5, num_kv_heads=1, head_dim=80),
    ],
    ids=str,
)
def test_equals_the_reference_and_leaves_other_slots_alone(case: KvWriteCase) -> None:
    expected, actual = case.tensors(), case.tensors()
    expected_query = reference.kv_write(**expected)
    actual_query = triton_kernel.kv_write(**actual)
    tolerance = 1e-6 if case.dtype == torch.float32 else 1e-3
    torch.testing.assert_close(actual_query, expected_query, atol=tolerance, rtol=tolerance)
    for name in ("key_cache", "value_cache"):
        torch.testing.assert_close(
            actual[name], expected[name], atol=tolerance, rtol=tolerance, equal_nan=True
        )
