"""SiLU of one half of the columns times the other half."""

from kernels.silu_and_mul.reference import silu_and_mul

__all__ = ["silu_and_mul"]
