"""From logits to tokens: each row by its own parameters, and a check that its logits are numbers at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.core.step import PlannedRow, SamplingParams
from kernels.sampling import SamplingRow, sample

GREEDY_BELOW: Final = 1e-30
"""A temperature so low draws the likeliest token; in float32 it may be 0, and dividing by it NaN."""


@dataclass(frozen=True, kw_only=True)
class SampledRows:
    """What was chosen for the rows that sample, still on the device."""

    token_ids: Tensor  # [num_rows] int64
    is_finite: Tensor  # [num_rows] bool; where False, the token has no meaning


def sample_rows(logits: Tensor, rows: Sequence[PlannedRow]) -> SampledRows:
    # logits [num_rows, vocab_size] float32, overwritten
    """Samples one token for each of `rows`, all of which have sampling parameters."""
    # A sum is finite exactly if all its terms are: logits are far too small to overflow.
    is_finite = logits.sum(dim=-1).isfinite()
    return SampledRows(token_ids=sample(logits, [_sampling_row(row) for row in rows]), is_finite=is_finite)


def no_sampled_rows() -> SampledRows:
    """The outcome of a step in which no row samples."""
    return SampledRows(
        token_ids=torch.empty(0, dtype=torch.int64), is_finite=torch.empty(0, dtype=torch.bool)
    )


def _sampling_row(row: PlannedRow) -> SamplingRow:
    params = row.sampling
    assert isinstance(params, SamplingParams)
    return SamplingRow(
        temperature=params.temperature if params.temperature >= GREEDY_BELOW else 0,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        position=row.start + len(row.token_ids),
        banned_token_ids=params.banned_token_ids,
    )
