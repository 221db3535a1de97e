"""Linear layers, over weights as they are, quantised, or packed for the native operators."""

import hashlib
from pathlib import Path

from torch import Tensor

from kernels import native as native_library
from kernels.linear import native, reference
from kernels.linear.native import PackedWeight, WeightKind
from kernels.linear.quantised import QuantisedWeight, quantise_weight

__all__ = [
    "PackedWeight",
    "QuantisedWeight",
    "Weight",
    "linear",
    "pack",
    "packed_from",
    "packing_fingerprint",
    "quantise_weight",
]

Weight = Tensor | QuantisedWeight | PackedWeight


def pack(weight: Tensor | QuantisedWeight) -> Weight:
    """`weight`, on a CPU, in the form that `linear` is fastest with on this machine."""
    library = native_library.library()
    return weight if library is None else native.pack(library, weight)


def packing_fingerprint() -> str:
    """Changes with whatever decides what a packed weight looks like; empty without native operators."""
    library = native_library.library()
    if library is None:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return f"{Path(library._name).name} {digest.hexdigest()}"


def packed_from(
    *, kind: int, in_size: int, out_size: int, panels: Tensor, scales: Tensor | None
) -> PackedWeight:
    """The packed weight that had these parts, under the same fingerprint."""
    library = native_library.library()
    assert library is not None
    return PackedWeight(
        library=library,
        kind=WeightKind(kind),
        in_size=in_size,
        out_size=out_size,
        panels=panels,
        scales=scales,
    )


def linear(rows: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    # rows [num_rows, in_size], weight [out_size, in_size], bias [out_size] -> [num_rows, out_size]
    """`rows` times the transpose of `weight`, plus `bias`; see reference.py."""
    if isinstance(weight, PackedWeight):
        return native.linear(rows, weight, bias)
    return reference.linear(rows, weight, bias)
