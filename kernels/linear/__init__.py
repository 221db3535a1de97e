"""Linear layers."""

from kernels.linear.reference import linear

__all__ = ["linear"]
