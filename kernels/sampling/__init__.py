"""The next token of each row: greedy, or drawn under temperature, top-k and top-p."""

from collections.abc import Sequence

from torch import Tensor

from kernels import native as native_library
from kernels.sampling import native, reference
from kernels.sampling.reference import SamplingRow
from kernels.tensors import are_native

__all__ = ["SamplingRow", "sample"]


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    # logits [num_rows, vocab_size], overwritten -> [num_rows] int64, [num_rows] bool
    """The chosen token of each row, and whether its logits were all numbers; see reference.py."""
    library = native_library.library() if are_native(logits) else None
    return reference.sample(logits, rows) if library is None else native.sample(library, logits, rows)
