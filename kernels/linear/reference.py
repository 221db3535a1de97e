"""A linear layer in plain PyTorch."""

from torch import Tensor
from torch.nn import functional


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # rows [num_rows, in_size], weight [out_size, in_size], bias [out_size] -> [num_rows, out_size]
    """`rows` times the transpose of `weight`, plus `bias`."""
    return functional.linear(rows, weight, bias)
