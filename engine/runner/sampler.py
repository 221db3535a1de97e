"""From logits to tokens: each row by its own parameters, and a check that its logits are numbers at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    errors: Mapping[int, str] = field(default_factory=dict)
    """By row: why no token could be chosen for it. Its place in `token_ids` has no meaning."""


def sample_rows(logits: Tensor, rows: Sequence[PlannedRow]) -> SampledRows:
    # logits [num_rows, vocab_size] float32, overwritten
    """Samples one token for each of `rows`, all of which have sampling parameters."""
    token_ids, is_finite = sample(logits, [_sampling_row(row) for row in rows])
    return SampledRows(token_ids=token_ids, is_finite=is_finite)


def sample_rows_apart(logits: Tensor, rows: Sequence[PlannedRow]) -> SampledRows:
    # logits [num_rows, vocab_size] float32, overwritten
    """As `sample_rows`, but row by row: one that raises has an error, the others have their tokens."""
    token_ids = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    is_finite = torch.zeros(len(rows), dtype=torch.bool, device=logits.device)
    errors: dict[int, str] = {}
    for index, row in enumerate(rows):
        try:
            own = slice(index, index + 1)
            token_ids[own], is_finite[own] = sample(logits[own], [_sampling_row(row)])
        except Exception as error:  # whatever is wrong with one row's parameters
            errors[index] = f"sampling failed: {error!r}"
    return SampledRows(token_ids=token_ids, is_finite=is_finite, errors=errors)


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
