"""Weights as whole numbers: int8 with one scale per output, symmetric, rounded to nearest."""

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP_SIZE = 64
"""Neighbouring inputs of a row that share one scale when activations are quantised, too.

One scale for a whole row costs some 2 % of perplexity on a small model, one per 64 inputs none that shows.
"""

_LARGEST = 127


@dataclass(frozen=True, kw_only=True, eq=False)
class QuantisedWeight:
    """A weight [out_size, in_size] is about `values * scales[:, None]`."""

    values: Tensor  # [out_size, in_size] int8, -127 to 127
    scales: Tensor  # [out_size] float32


def quantise_weight(weight: Tensor) -> QuantisedWeight:
    # weight [out_size, in_size]
    """The nearest quantised weight; an output without weights has the scale 0."""
    scales = weight.float().abs().amax(dim=1) / _LARGEST
    values = (weight.float() / scales.unsqueeze(1)).nan_to_num_(0).round_()
    return QuantisedWeight(values=values.to(torch.int8), scales=scales)


def quantise_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    # rows [num_rows, in_size]
    # -> whole numbers [num_rows, num_groups, GROUP_SIZE] float32, scales [num_rows, num_groups, 1]
    """Activations as int8's numbers, a scale for each group; the last group is padded with zeros.

    A group with NaN or infinity in it gets the scale NaN, so that what is no number stays none.
    """
    num_groups = -(-rows.shape[1] // GROUP_SIZE)
    padded = torch.nn.functional.pad(rows.float(), (0, num_groups * GROUP_SIZE - rows.shape[1]))
    groups = padded.view(rows.shape[0], num_groups, GROUP_SIZE)
    largest = groups.abs().amax(dim=2, keepdim=True)
    scales = torch.where(largest.isfinite(), largest / _LARGEST, torch.nan)
    return (groups / scales).nan_to_num_(0, 0, 0).round_(), scales
