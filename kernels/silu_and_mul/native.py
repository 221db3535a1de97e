"""The gated activation in C++. See reference.py for what it computes."""

import ctypes

import torch
from torch import Tensor

from kernels.tensors import address


def silu_and_mul(library: ctypes.CDLL, gate_and_up: Tensor) -> Tensor:
    # gate_and_up [num_tokens, 2 * size] float32 -> [num_tokens, size]
    """As reference.silu_and_mul."""
    num_rows, size = gate_and_up.shape[0], gate_and_up.shape[1] // 2
    activated = torch.empty(num_rows, size)
    library.sluice_silu_and_mul(
        address(gate_and_up.contiguous()), ctypes.c_int(num_rows), ctypes.c_int(size), address(activated)
    )
    return activated
