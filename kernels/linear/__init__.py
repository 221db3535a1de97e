"""Linear layers, over weights as they are, quantised, or packed for the native operators."""

from torch import Tensor

from kernels import native as native_library
from kernels.linear import native, reference
from kernels.linear.native import PackedWeight
from kernels.linear.quantised import QuantisedWeight, quantise_weight

__all__ = ["PackedWeight", "QuantisedWeight", "Weight", "linear", "pack", "quantise_weight"]

Weight = Tensor | QuantisedWeight | PackedWeight


def pack(weight: Tensor | QuantisedWeight) -> Weight:
    """`weight`, on a CPU, in the form that `linear` is fastest with on this machine."""
    library = native_library.library()
    return weight if library is None else native.pack(library, weight)


def linear(rows: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    # rows [num_rows, in_size], weight [out_size, in_size], bias [out_size] -> [num_rows, out_size]
    """`rows` times the transpose of `weight`, plus `bias`; see reference.py."""
    if isinstance(weight, PackedWeight):
        return native.linear(rows, weight, bias)
    return reference.linear(rows, weight, bias)
