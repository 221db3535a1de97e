"""Root-mean-square normalisation, with and without adding a residual first."""

from kernels.rms_norm.reference import add_and_rms_norm, rms_norm

__all__ = ["add_and_rms_norm", "rms_norm"]
