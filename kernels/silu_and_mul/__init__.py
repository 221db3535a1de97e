"""SiLU of one half of the columns times the other half."""

from torch import Tensor

from kernels import native as native_library
from kernels.silu_and_mul import native, reference
from kernels.tensors import are_native

__all__ = ["silu_and_mul"]


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    # gate_and_up [num_tokens, 2 * size] -> [num_tokens, size]
    """SiLU of the first half of the last dimension, times the second half; see reference.py."""
    library = native_library.library() if are_native(gate_and_up) else None
    return (
        reference.silu_and_mul(gate_and_up) if library is None else native.silu_and_mul(library, gate_and_up)
    )
