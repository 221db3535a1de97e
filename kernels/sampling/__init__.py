"""The next token of each row: greedy, or drawn under temperature, top-k and top-p."""

from kernels.sampling.reference import SamplingRow, sample

__all__ = ["SamplingRow", "sample"]
