"""The native operators that work row by row, against their references over odd sizes."""

import ctypes
import math

import pytest
import torch

from kernels.kv_write import native as kv_write_native
from kernels.kv_write import reference as kv_write_reference
from kernels.rms_norm import native as rms_norm_native
from kernels.rms_norm import reference as rms_norm_reference
from kernels.silu_and_mul import native as silu_native
from kernels.silu_and_mul import reference as silu_reference
from tests.builders.paged_cache import KvWriteCase
from tests.kernels.native.test_attention import in_native_order

SIZES = (1, 5, 63, 64, 127, 576)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", [1, 5, 33])
def test_rms_norm_equals_the_reference(library: ctypes.CDLL, num_rows: int, size: int) -> None:
    hidden, residual, weight = torch.randn(num_rows, size), torch.randn(num_rows, size), torch.randn(size)
    actual = rms_norm_native.rms_norm(library, hidden, weight, epsilon=1e-5)
    torch.testing.assert_close(actual, rms_norm_reference.rms_norm(hidden, weight, epsilon=1e-5))
    expected = rms_norm_reference.add_and_rms_norm(hidden, residual.clone(), weight, epsilon=1e-5)
    actual, total = rms_norm_native.add_and_rms_norm(library, hidden, residual, weight, epsilon=1e-5)
    torch.testing.assert_close((actual, total), expected)
    assert total is residual


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", [1, 5, 33])
def test_silu_and_mul_equals_the_reference(library: ctypes.CDLL, num_rows: int, size: int) -> None:
    rows = torch.randn(num_rows, 2 * size) * 4
    torch.testing.assert_close(silu_native.silu_and_mul(library, rows), silu_reference.silu_and_mul(rows))


def test_silu_and_mul_of_large_numbers_is_their_limit(library: ctypes.CDLL) -> None:
    gates = torch.tensor([[-1000.0, -100.0, -88.5, 88.5, 100.0, 1000.0]])
    actual = silu_native.silu_and_mul(library, torch.cat([gates, torch.ones_like(gates)], dim=1))
    torch.testing.assert_close(actual, gates.clamp(min=0), atol=1e-30, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("num_tokens", [1, 5, 63])
def test_kv_write_equals_the_reference_and_leaves_other_slots(
    library: ctypes.CDLL, num_tokens: int, head_dim: int, dtype: torch.dtype
) -> None:
    tensors = KvWriteCase(num_tokens=num_tokens, head_dim=head_dim, block_size=7).tensors()
    key_cache, value_cache = (tensors.pop(name).to(dtype) for name in ("key_cache", "value_cache"))
    own_keys, own_values = in_native_order(key_cache), value_cache.clone()
    expected = kv_write_reference.kv_write(**tensors, key_cache=key_cache, value_cache=value_cache)
    actual = kv_write_native.kv_write(library, **tensors, key_cache=own_keys, value_cache=own_values)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(own_keys, key_cache, atol=tolerance, rtol=tolerance, equal_nan=True)
    torch.testing.assert_close(own_values, value_cache, atol=0, rtol=0, equal_nan=True)
    assert math.isnan(float(own_keys.float().sum()))
