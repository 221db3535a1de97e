"""Root-mean-square normalisation, with and without adding a residual first."""

from torch import Tensor

from kernels import native as native_library
from kernels.rms_norm import native, reference
from kernels.tensors import are_native

__all__ = ["add_and_rms_norm", "rms_norm"]


def rms_norm(hidden: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
    # hidden [num_tokens, size], weight [size] -> [num_tokens, size]
    """`hidden` divided by its root mean square, times `weight`; see reference.py."""
    library = native_library.library() if are_native(hidden, weight) else None
    if library is None:
        return reference.rms_norm(hidden, weight, epsilon=epsilon)
    return native.rms_norm(library, hidden, weight, epsilon=epsilon)


def add_and_rms_norm(
    hidden: Tensor, residual: Tensor, weight: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    # hidden, residual [num_tokens, size] -> the same twice
    """(normalised sum, sum) of `hidden` and `residual`, which is overwritten; see reference.py."""
    library = native_library.library() if are_native(hidden, residual, weight) else None
    if library is None:
        return reference.add_and_rms_norm(hidden, residual, weight, epsilon=epsilon)
    return native.add_and_rms_norm(library, hidden, residual, weight, epsilon=epsilon)
