"""Linear layers over packed weights, in C++. What a layer computes is written in reference.py."""

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from kernels.linear.quantised import QuantisedWeight
from kernels.tensors import Address, address


class WeightKind(IntEnum):
    """As in native.h."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


class LinearStruct(ctypes.Structure):
    """As struct Linear in native.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("in_size", ctypes.c_int32),
        ("out_size", ctypes.c_int32),
        ("panels", Address),
        ("scales", Address),
        ("bias", Address),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedWeight:
    """A weight in the order that the operators of `library` read it in; no other can use it."""

    library: ctypes.CDLL
    kind: WeightKind
    in_size: int
    out_size: int
    panels: Tensor  # bytes
    scales: Tensor | None  # int8: [out_size, rounded up to whole panels] float32

    def struct(self, bias: Tensor | None) -> LinearStruct:
        """The layer with `bias`, for C++; this weight and the bias must outlive it."""
        return LinearStruct(
            self.kind,
            self.in_size,
            self.out_size,
            address(self.panels, torch.uint8),
            address(self.scales),
            address(bias),
        )


def pack(library: ctypes.CDLL, weight: Tensor | QuantisedWeight) -> PackedWeight:
    """Packs a float32 or bfloat16 weight [out_size, in_size] as what it is, or a quantised one."""
    if isinstance(weight, QuantisedWeight):
        out_size, in_size, kind = (
            weight.codes.shape[0],
            weight.in_size,
            WeightKind.INT4 if weight.is_narrow else WeightKind.INT8,
        )
    else:
        out_size, in_size = weight.shape
        kind = WeightKind.BFLOAT16 if weight.dtype == torch.bfloat16 else WeightKind.FLOAT32
    library.sluice_linear_packed_bytes.restype = ctypes.c_int64
    panels = torch.empty(library.sluice_linear_packed_bytes(kind, out_size, in_size), dtype=torch.uint8)
    sizes = ctypes.c_int(out_size), ctypes.c_int(in_size), address(panels, torch.uint8)
    if isinstance(weight, QuantisedWeight):
        parts = (
            address(weight.codes, torch.uint8),
            *(address(part, torch.float16) for part in (weight.scales, weight.minima)),
        )
        library.sluice_linear_pack_codes(ctypes.c_int(kind), *parts, *sizes)
    else:
        library.sluice_linear_pack_floats(ctypes.c_int(kind), address(weight.float().contiguous()), *sizes)
    return PackedWeight(
        library=library,
        kind=kind,
        in_size=in_size,
        out_size=out_size,
        panels=panels,
        scales=_padded(library, weight.output_scales) if isinstance(weight, QuantisedWeight) else None,
    )


def linear(rows: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    # rows [num_rows, in_size] float32 -> [num_rows, out_size] float32
    """As reference.linear."""
    library, num_rows = weight.library, rows.shape[0]
    output = torch.empty(num_rows, weight.out_size)
    library.sluice_linear_scratch_bytes.restype = ctypes.c_int64
    scratch = torch.empty(library.sluice_linear_scratch_bytes(num_rows, weight.in_size), dtype=torch.uint8)
    library.sluice_linear(
        ctypes.byref(weight.struct(bias)),
        address(rows.contiguous()),
        ctypes.c_int(num_rows),
        address(scratch, torch.uint8),
        address(output),
    )
    return output


def _padded(library: ctypes.CDLL, scales: Tensor) -> Tensor:
    """`scales` with zeros up to a whole number of panels."""
    width = library.sluice_linear_panel_width()
    padded = torch.zeros(-(-scales.shape[0] // width) * width)
    padded[: scales.shape[0]] = scales
    return padded
