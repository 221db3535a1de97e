"""Weights as bytes: in each group of 32 inputs of an output, 256 even steps from a minimum upwards.

Symmetric int8 with one scale per output, and activations as int8, too, is faster where a processor
multiplies bytes; but it changed the beginnings of 13 of 50 answers of a small model, where bfloat16 changes
one. With these groups a model that came quantised to 4 bits per 32 inputs (as GGUF files are) stays itself,
and is kept in 4 bits.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP_SIZE = 32
"""Neighbouring inputs that share one scale."""

_LARGEST_CODE = 255
_LARGEST_NARROW_CODE = 15
_NARROW_TOLERANCE = 2.0**-9  # of a group's largest weight: what bfloat16 would cost
_LARGEST_NUMBER = 16383  # of activations, as in native.h
_LEAST = 1e-30  # as in native.cpp
_SLICE_WEIGHTS = 2**18  # quantised at once: what is computed on the way stays in a processor's cache


@dataclass(frozen=True, kw_only=True, eq=False)
class QuantisedWeight:
    """A weight is `(code * scale + minimum) * output_scale`, the middle two those of its output and group."""

    codes: Tensor  # [out_size, num_groups, GROUP_SIZE] uint8, 0 in the padding of the last group
    scales: Tensor  # [out_size, num_groups] float16
    minima: Tensor  # [out_size, num_groups] float16
    output_scales: Tensor  # [out_size] float32
    in_size: int
    is_narrow: bool
    """Whether all codes are below 16, so that four bits hold one."""

    def floats(self) -> Tensor:
        # -> [out_size, in_size] float32
        """The weights that the codes stand for."""
        scaled = self.codes * self.scales.float().unsqueeze(2) + self.minima.float().unsqueeze(2)
        return scaled.flatten(1)[:, : self.in_size] * self.output_scales.unsqueeze(1)


def quantise_weight(weight: Tensor) -> QuantisedWeight:
    # weight [out_size, in_size]
    """The nearest quantised weight; a narrow one where that is as near, as for 4-bit files."""
    slices = weight.split(max(1, _SLICE_WEIGHTS // weight.shape[1]))
    with _pool() as pool:
        found = list(pool.map(lambda rows: _quantised(rows, _LARGEST_NARROW_CODE), slices))
        if not all(is_near for _, is_near in found):
            found = list(pool.map(lambda rows: _quantised(rows, _LARGEST_CODE), slices))
        return _joined([quantised for quantised, _ in found])


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """As many threads as PyTorch uses, in each of which it uses that one only.

    Its own would share out each small step of a slice, and wait for one another longer than they work.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # new threads take it over
    try:
        with ThreadPoolExecutor(num_threads) as pool:
            yield pool
    finally:
        torch.set_num_threads(num_threads)


def _quantised(weight: Tensor, largest_code: int) -> tuple[QuantisedWeight, bool]:
    """The nearest with codes up to `largest_code`, and whether it is within _NARROW_TOLERANCE everywhere."""
    output_scales = weight.float().abs().amax(dim=1)
    groups = _groups(weight.float() / output_scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1))
    lowest, highest = groups.amin(dim=2), groups.amax(dim=2)
    scales = ((highest - lowest) / largest_code).half()
    minima = lowest.half()
    step_sizes = scales.float().unsqueeze(2)
    steps = groups.sub_(minima.float().unsqueeze(2)).div_(step_sizes).nan_to_num_(0, 0, 0)
    codes = steps.round()
    errors = steps.sub_(codes).mul_(step_sizes).abs_().amax(dim=2)
    is_near = bool((errors <= _NARROW_TOLERANCE * torch.maximum(lowest.abs(), highest.abs())).all())
    quantised = QuantisedWeight(
        codes=codes.clamp_(0, largest_code).to(torch.uint8),
        scales=scales,
        minima=minima,
        output_scales=output_scales,
        in_size=weight.shape[1],
        is_narrow=largest_code == _LARGEST_NARROW_CODE,
    )
    return quantised, is_near


def _joined(slices: Sequence[QuantisedWeight]) -> QuantisedWeight:
    """One below the other."""
    return QuantisedWeight(
        codes=torch.cat([rows.codes for rows in slices]),
        scales=torch.cat([rows.scales for rows in slices]),
        minima=torch.cat([rows.minima for rows in slices]),
        output_scales=torch.cat([rows.output_scales for rows in slices]),
        in_size=slices[0].in_size,
        is_narrow=slices[0].is_narrow,
    )


def quantise_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    # rows [num_rows, in_size]
    # -> whole numbers [num_rows, num_groups, GROUP_SIZE] float32, scales [num_rows, num_groups, 1]
    """Activations as numbers of 15 bits, a scale for each group; the last group is padded with zeros.

    A group with NaN or infinity in it gets the scale NaN, so that what is no number stays none.
    """
    groups = _groups(rows.float(), padding=0.0)
    largest = groups.abs().amax(dim=2, keepdim=True)
    scales = torch.where(largest.isfinite(), largest / _LARGEST_NUMBER, torch.nan)
    # A tensor of its own: a number divided by a tensor is multiplied by its rounded reciprocal.
    inverses = torch.where(largest > _LEAST, torch.tensor(float(_LARGEST_NUMBER)) / largest, 0)
    return (groups * inverses).nan_to_num_(0, 0, 0).round_(), scales


def _groups(matrix: Tensor, padding: float | None = None) -> Tensor:
    # [num_rows, size] -> [num_rows, num_groups, GROUP_SIZE]
    """The last group is filled with `padding`, or with its row's last value, which widens no range."""
    num_missing = -matrix.shape[1] % GROUP_SIZE
    if num_missing == 0:
        filled = matrix
    elif padding is None:
        filled = torch.cat([matrix, matrix[:, -1:].expand(-1, num_missing)], dim=1)
    else:
        filled = functional.pad(matrix, (0, num_missing), value=padding)
    return filled.view(matrix.shape[0], -1, GROUP_SIZE)
