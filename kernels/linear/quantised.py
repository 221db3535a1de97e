"""Weights as bytes: in each group of 32 inputs of an output, 256 even steps from a minimum upwards.

Symmetric int8 with one scale per output, and activations as int8, too, is faster where a processor
multiplies bytes; but it changed the beginnings of 13 of 50 answers of a small model, where bfloat16 changes
one. With these groups a model that came quantised to 4 bits per 32 inputs (as GGUF files are) stays itself,
and is kept in 4 bits.
"""

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
    output_scales = weight.float().abs().amax(dim=1)
    groups = _groups(weight.float() / output_scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1))
    steps, scales, minima = _steps(groups, _LARGEST_NARROW_CODE)
    errors = ((steps - steps.round()) * scales.float().unsqueeze(2)).abs().amax(dim=2)
    is_narrow = bool((errors <= _NARROW_TOLERANCE * groups.abs().amax(dim=2)).all())
    if not is_narrow:
        steps, scales, minima = _steps(groups, _LARGEST_CODE)
    return QuantisedWeight(
        codes=steps.round_().clamp_(0, _LARGEST_NARROW_CODE if is_narrow else _LARGEST_CODE).to(torch.uint8),
        scales=scales,
        minima=minima,
        output_scales=output_scales,
        in_size=weight.shape[1],
        is_narrow=is_narrow,
    )


def _steps(groups: Tensor, largest_code: int) -> tuple[Tensor, Tensor, Tensor]:
    # groups [out_size, num_groups, GROUP_SIZE] -> the same, and twice [out_size, num_groups] float16
    """How many steps each weight is above its group's minimum, not yet whole; their sizes; the minima."""
    lowest = groups.amin(dim=2)
    scales = ((groups.amax(dim=2) - lowest) / largest_code).half()
    minima = lowest.half()
    steps = (groups - minima.float().unsqueeze(2)) / scales.float().unsqueeze(2)
    return steps.nan_to_num_(0, 0, 0), scales, minima


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
    if padding is None:
        filled = torch.cat([matrix, matrix[:, -1:].expand(-1, num_missing)], dim=1)
    else:
        filled = functional.pad(matrix, (0, num_missing), value=padding)
    return filled.view(matrix.shape[0], -1, GROUP_SIZE)
