"""The operators that are one formula each, against that formula in float64."""

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.linear import linear
from kernels.rms_norm import add_and_rms_norm, rms_norm
from kernels.silu_and_mul import silu_and_mul
from tests.builders.paged_cache import KvWriteCase


def random(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def exact_rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    wide = hidden.double()
    return wide / (wide.pow(2).mean(dim=-1, keepdim=True) + epsilon).sqrt() * weight.double()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2)], ids=str)
def test_rms_norm_divides_by_the_root_mean_square(dtype: torch.dtype, tolerance: float) -> None:
    hidden, weight = random(5, 48).to(dtype), random(48, seed=1).to(dtype)
    normalised = rms_norm(hidden, weight, epsilon=1e-5)
    assert normalised.dtype == dtype
    expected = exact_rms_norm(hidden, weight, 1e-5)
    torch.testing.assert_close(normalised.double(), expected, atol=tolerance, rtol=tolerance)


def test_add_and_rms_norm_returns_the_sum_as_the_new_residual() -> None:
    hidden, residual, weight = random(5, 48), random(5, 48, seed=1), random(48, seed=2)
    expected_sum = hidden + residual
    normalised, total = add_and_rms_norm(hidden, residual, weight, epsilon=1e-5)
    torch.testing.assert_close(total, expected_sum)
    torch.testing.assert_close(
        normalised.double(), exact_rms_norm(expected_sum, weight, 1e-5), atol=1e-6, rtol=1e-6
    )


def test_silu_and_mul_gates_the_second_half_by_the_first() -> None:
    rows = random(5, 48)
    gate, up = rows.double().chunk(2, dim=-1)
    torch.testing.assert_close(silu_and_mul(rows).double(), gate * gate.sigmoid() * up, atol=1e-6, rtol=1e-6)


def test_linear_adds_the_bias_when_there_is_one() -> None:
    rows, weight, bias = random(3, 8), random(5, 8, seed=1), random(5, seed=2)
    torch.testing.assert_close(linear(rows, weight), rows @ weight.T)
    torch.testing.assert_close(linear(rows, weight, bias), rows @ weight.T + bias)


@pytest.mark.parametrize("num_tokens", [1, 16, 37])
def test_kv_write_rotates_halves_and_touches_only_its_slots(num_tokens: int) -> None:
    case = KvWriteCase(num_tokens=num_tokens)
    tensors = case.tensors()
    query = kv_write(**tensors)
    heads = tensors["qkv"].view(num_tokens, -1, case.head_dim)
    first, second = heads.double().chunk(2, dim=-1)
    cos, sin = (tensors[name].double()[:, case.head_dim // 2 :].unsqueeze(1) for name in ("cos", "sin"))
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    written_keys, written_values = (
        tensors[name].permute(0, 2, 1, 3).reshape(-1, case.num_kv_heads, case.head_dim)
        for name in ("key_cache", "value_cache")
    )
    slots = tensors["slots"]
    torch.testing.assert_close(query.double(), rotated[:, : case.num_heads], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        written_keys[slots].double(),
        rotated[:, case.num_heads : -case.num_kv_heads],
        atol=1e-6,
        rtol=1e-6,
    )
    torch.testing.assert_close(written_values[slots], heads[:, -case.num_kv_heads :])
    untouched = torch.ones(len(written_keys), dtype=torch.bool)
    untouched[slots] = False
    assert written_keys[untouched].isnan().all()
    assert written_values[untouched].isnan().all()
