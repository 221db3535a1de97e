"""A linear layer in plain PyTorch."""

from torch import Tensor
from torch.nn import functional

from kernels.linear.quantised import QuantisedWeight, quantise_rows


def linear(rows: Tensor, weight: Tensor | QuantisedWeight, bias: Tensor | None = None) -> Tensor:
    # rows [num_rows, in_size], weight [out_size, in_size], bias [out_size] -> [num_rows, out_size]
    """`rows` times the transpose of `weight`, plus `bias`."""
    if isinstance(weight, QuantisedWeight):
        return _quantised_linear(rows, weight, bias)
    return functional.linear(rows.to(weight.dtype), weight, bias)


def _quantised_linear(rows: Tensor, weight: QuantisedWeight, bias: Tensor | None) -> Tensor:
    numbers, scales = quantise_rows(rows)
    nearest = (numbers * scales).flatten(1)[:, : rows.shape[1]]
    return functional.linear(nearest, weight.floats(), bias)
