"""A linear layer in plain PyTorch."""

from torch import Tensor
from torch.nn import functional

from kernels.linear.quantised import Detail, QuantisedWeight, quantise_rows


def linear(
    rows: Tensor,
    weight: Tensor | QuantisedWeight,
    bias: Tensor | None = None,
    *,
    detail: Detail = Detail.FINE,
) -> Tensor:
    # rows [num_rows, in_size], weight [out_size, in_size], bias [out_size] -> [num_rows, out_size]
    """`rows` times the transpose of `weight`, plus `bias`; quantised weights see the rows in that detail."""
    if isinstance(weight, QuantisedWeight):
        return _quantised_linear(rows, weight, bias, detail)
    return functional.linear(rows.to(weight.dtype), weight, bias)


def _quantised_linear(rows: Tensor, weight: QuantisedWeight, bias: Tensor | None, detail: Detail) -> Tensor:
    numbers, scales = quantise_rows(rows, detail)
    nearest = (numbers * scales).flatten(1)[:, : rows.shape[1]]
    return functional.linear(nearest, weight.floats(), bias)
