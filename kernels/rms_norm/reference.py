"""Root-mean-square normalisation in plain PyTorch. Knows nothing of models."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(hidden: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
    # hidden [num_tokens, size], weight [size] -> [num_tokens, size]
    """`hidden` divided by its root mean square over the last dimension, times `weight`; summed in float32."""
    if hidden.dtype == torch.float32:
        return functional.rms_norm(hidden, weight.shape, weight, epsilon)
    normalised = functional.rms_norm(hidden.float(), weight.shape, None, epsilon)
    return normalised.to(hidden.dtype) * weight


def add_and_rms_norm(
    hidden: Tensor, residual: Tensor, weight: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor]:
    # hidden, residual [num_tokens, size] -> the same twice
    """(normalised sum, sum) of `hidden` and `residual`. `residual` is overwritten with the sum."""
    total = residual.add_(hidden)
    return rms_norm(total, weight, epsilon=epsilon), total
