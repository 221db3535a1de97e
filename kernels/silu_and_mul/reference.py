"""The gated activation of a Llama MLP in plain PyTorch."""

from torch import Tensor
from torch.nn import functional


def silu_and_mul(gate_and_up: Tensor) -> Tensor:
    # gate_and_up [num_tokens, 2 * size] -> [num_tokens, size]
    """SiLU of the first half of the last dimension, times the second half."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
