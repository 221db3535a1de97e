"""Packed linear layers against the reference, in every kind and over shapes that fill no tile."""

import ctypes

import pytest
import torch
from torch import Tensor

from kernels.linear import native, reference
from kernels.linear.quantised import GROUP_SIZE, QuantisedWeight, quantise_weight

KINDS = ("float32", "bfloat16", "int8", "int4")
SIZES = (1, 5, 63, 127, 200)
TOLERANCE = 2e-5


def weight_of(kind: str, out_size: int, in_size: int) -> Tensor | QuantisedWeight:
    weight = torch.randn(out_size, in_size, generator=torch.Generator().manual_seed(out_size + in_size))
    if kind == "int8":
        return quantise_weight(weight)
    if kind == "int4":
        narrow = quantise_weight(in_sixteen_steps(weight))
        assert narrow.is_narrow
        return narrow
    return weight.to(torch.bfloat16 if kind == "bfloat16" else torch.float32)


def in_sixteen_steps(weight: Tensor) -> Tensor:
    """Weights as a file with 4 bits for each of them has it: 16 even steps in every group of 32 inputs."""
    out_size, in_size = weight.shape
    padded = torch.cat([weight, weight[:, -1:].expand(-1, -in_size % GROUP_SIZE)], dim=1)
    groups = padded.view(out_size, -1, GROUP_SIZE)
    lowest, highest = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    step = ((highest - lowest) / 15).clamp(min=1e-9)
    return (lowest + ((groups - lowest) / step).round() * step).view(out_size, -1)[:, :in_size]


def expected(rows: Tensor, weight: Tensor | QuantisedWeight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, Tensor):
        weight = weight.float()  # a bfloat16 weight meets float32 activations
    return reference.linear(rows, weight, bias)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [1, 5, 62, 63, 64, 127])  # every remainder of four and of six rows
@pytest.mark.parametrize("in_size", SIZES)
def test_equals_the_reference(library: ctypes.CDLL, kind: str, num_rows: int, in_size: int) -> None:
    for out_size in SIZES:
        weight = weight_of(kind, out_size, in_size)
        rows, bias = torch.randn(num_rows, in_size), torch.randn(out_size) if out_size % 2 else None
        actual = native.linear(rows, native.pack(library, weight), bias)
        torch.testing.assert_close(
            actual, expected(rows, weight, bias), atol=TOLERANCE * in_size**0.5, rtol=TOLERANCE
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_alone_and_in_company(library: ctypes.CDLL, kind: str) -> None:
    packed = native.pack(library, weight_of(kind, 200, 127))
    rows = torch.randn(23, 127)
    together = native.linear(rows, packed, None)
    alone = torch.cat([native.linear(rows[i : i + 1], packed, None) for i in range(23)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_no_bit(library: ctypes.CDLL, kind: str) -> None:
    packed = native.pack(library, weight_of(kind, 500, 127))
    rows = torch.randn(9, 127)
    outputs = []
    for count in (1, 2, 3):
        library.sluice_set_num_threads(ctypes.c_int(count))
        outputs.append(native.linear(rows, packed, None))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_number_stays_none_and_leaves_the_others(
    library: ctypes.CDLL, kind: str, fault: float
) -> None:
    packed = native.pack(library, weight_of(kind, 70, 130))
    rows = torch.randn(3, 130)
    good = native.linear(rows, packed, None)
    rows[1, 100] = fault
    output = native.linear(rows, packed, None)
    assert not output[1].isfinite().any()
    assert torch.equal(output[[0, 2]], good[[0, 2]])


def test_zeros_give_zeros_in_int8(library: ctypes.CDLL) -> None:
    packed = native.pack(library, quantise_weight(torch.zeros(33, 65)))
    assert torch.equal(native.linear(torch.randn(2, 65), packed, None), torch.zeros(2, 33))
    packed = native.pack(library, weight_of("int8", 33, 65))
    assert torch.equal(native.linear(torch.zeros(2, 65), packed, None), torch.zeros(2, 33))


def test_weights_of_sixteen_steps_lose_nothing_and_take_half_the_memory(library: ctypes.CDLL) -> None:
    weight = in_sixteen_steps(torch.randn(96, 320, generator=torch.Generator().manual_seed(0)))
    narrow, wide = quantise_weight(weight), quantise_weight(torch.randn(96, 320))
    torch.testing.assert_close(narrow.floats(), weight, atol=2e-3, rtol=2e-3)
    sizes = [native.pack(library, each).panels.nbytes for each in (narrow, wide)]
    assert sizes == [96 * 320 * 20 // 32, 96 * 320 * 36 // 32]
