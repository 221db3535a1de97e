"""A weight is quantised slice by slice, which changes nothing."""

import pytest
import torch
from torch import Tensor

from kernels.linear import QuantisedWeight, quantise_weight, quantised


def in_slices(monkeypatch: pytest.MonkeyPatch, weight: Tensor, num_rows: int) -> QuantisedWeight:
    with monkeypatch.context() as patch:
        patch.setattr(quantised, "_SLICE_WEIGHTS", num_rows * weight.shape[1])
        return quantise_weight(weight)


def sixteen_values(num_rows: int, in_size: int) -> Tensor:
    weight = torch.randint(0, 16, (num_rows, in_size)) / 16
    weight[:, ::32], weight[:, 1::32] = 0, 15 / 16  # each group has the lowest and the highest
    return weight


@pytest.mark.parametrize("num_rows", [1, 4, 7])
@pytest.mark.parametrize("in_size", [1, 32, 70])
def test_slices_change_nothing(num_rows: int, in_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(23, in_size, generator=torch.Generator().manual_seed(0))
    whole, sliced = quantise_weight(weight), in_slices(monkeypatch, weight, num_rows)
    for part in ("codes", "scales", "minima", "output_scales"):
        assert torch.equal(getattr(sliced, part), getattr(whole, part)), part
    assert (sliced.in_size, sliced.is_narrow) == (whole.in_size, whole.is_narrow)


def test_one_slice_that_needs_bytes_gives_all_of_them_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = sixteen_values(12, 64)
    assert in_slices(monkeypatch, weight, 4).is_narrow
    weight[5] = torch.randn(64)
    sliced = in_slices(monkeypatch, weight, 4)
    assert not sliced.is_narrow
    assert torch.equal(sliced.codes, quantise_weight(weight).codes)


def test_pytorch_keeps_its_threads() -> None:
    num_threads = torch.get_num_threads()
    quantise_weight(torch.randn(8, 8))
    assert torch.get_num_threads() == num_threads
