"""Root-mean-square normalisation in C++. See reference.py for what it computes."""

import ctypes

import torch
from torch import Tensor

from kernels.tensors import address


def rms_norm(library: ctypes.CDLL, hidden: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
    # hidden [num_tokens, size] float32, weight [size] -> [num_tokens, size]
    """As reference.rms_norm."""
    hidden = hidden.contiguous()
    normed = torch.empty_like(hidden)
    num_rows, size = (ctypes.c_int(length) for length in hidden.shape)
    library.sluice_rms_norm(
        address(hidden), address(weight), num_rows, size, ctypes.c_float(epsilon), address(normed)
    )
    return normed


def add_and_rms_norm(
    library: ctypes.CDLL, hidden: Tensor, residual: Tensor, weight: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    # hidden, residual [num_tokens, size] float32 -> the same twice
    """As reference.add_and_rms_norm."""
    hidden = hidden.contiguous()
    normed = torch.empty_like(hidden)
    num_rows, size = (ctypes.c_int(length) for length in hidden.shape)
    library.sluice_add_and_rms_norm(
        address(hidden),
        address(residual),
        address(weight),
        num_rows,
        size,
        ctypes.c_float(epsilon),
        address(normed),
    )
    return normed, residual
