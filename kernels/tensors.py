"""Tensors as the native operators see them: an address, checked for what the other side assumes."""

import ctypes

import torch
from torch import Tensor


class Address(ctypes.c_void_p):
    """A pointer for C++. It keeps what it points to, unless it was copied into a structure."""

    owner: object = None


def address(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> Address | None:
    """Where `tensor` begins; it must be contiguous, on the CPU and of type `dtype`. None stays None."""
    if tensor is None:
        return None
    if tensor.dtype != dtype or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"a contiguous {dtype} tensor on the CPU is needed, not {tensor.dtype} on {tensor.device}"
        )
    pointer = Address(tensor.data_ptr())
    pointer.owner = tensor
    return pointer


def are_native(*tensors: Tensor) -> bool:
    """Whether native operators can read all of `tensors`: float32 on the CPU."""
    return all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
