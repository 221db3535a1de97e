"""Choosing the next token of each row from its logits, in plain PyTorch. Holds no random state.

A row's draw is a function of its seed and position alone, so it is the same whatever else the step computes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_NUM_CANDIDATES = (256, 4096)
"""Logits looked at before a whole row is sorted: they nearly always hold the nucleus (0.1 ms, not 5)."""

_MASK_64 = (1 << 64) - 1


class SamplingRow(NamedTuple):
    """How one row's token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    `position` is where the chosen token will stand in its sequence.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    position: int
    banned_token_ids: tuple[int, ...] = ()


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    # logits [num_rows, vocab_size], overwritten -> [num_rows] int64, [num_rows] bool
    """The chosen token of each row, and whether its logits were all numbers: otherwise it has no meaning."""
    # A sum is finite exactly if all its terms are: logits are far too small to overflow.
    is_finite = logits.sum(dim=-1).isfinite()
    for index, row in enumerate(rows):
        if row.banned_token_ids:
            logits[index, list(row.banned_token_ids)] = -math.inf
    chosen = logits.argmax(dim=-1)
    for index, row in enumerate(rows):
        if row.temperature > 0 and row.top_k != 1:
            chosen[index] = _draw(logits[index], row)
    return chosen, is_finite


def uniform(seed: int, position: int) -> float:
    """A number of [0, 1) that depends on its arguments alone; its 48 bits keep products from rounding up."""
    return (_mix(_mix(seed & _MASK_64) ^ (position & _MASK_64)) >> 16) * 2.0**-48


def _mix(state: int) -> int:
    """The finaliser of SplitMix64: every bit of the state reaches every bit of the result."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK_64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return state ^ (state >> 31)


def _draw(logits: Tensor, row: SamplingRow) -> Tensor:
    # logits [vocab_size] -> scalar
    """Inverts the cumulative distribution, in the order of token ids, at the row's uniform number."""
    # The largest is taken off first: a tiny temperature would overflow the quotient otherwise.
    weights = ((logits.float() - logits.max()) / row.temperature).exp_()
    if 0 < row.top_k < weights.shape[0] or row.top_p < 1:
        weights = _keep_likeliest(logits, weights, row)
    cumulative = weights.cumsum(dim=0, dtype=torch.float64)
    target = cumulative[-1] * uniform(row.seed, row.position)
    # right=True skips tokens without weight: the first sum above the target belongs to one that has.
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=weights.shape[0] - 1)


def _keep_likeliest(logits: Tensor, weights: Tensor, row: SamplingRow) -> Tensor:
    """Zeroes all but the `top_k` likeliest, and of those all but the smallest set holding `top_p`."""
    size = weights.shape[0]
    if row.top_k:
        order = _likeliest_first(logits, min(row.top_k, size))
        needed = row.top_p * weights[order].sum()
    else:
        needed = row.top_p * weights.sum()
        order = _holding(needed, logits, weights)
    kept = weights[order]
    # A token stays while those before it hold less than what is needed; the first always stays.
    stays = kept.cumsum(dim=0) - kept < needed
    stays[0] = True
    return torch.zeros_like(weights).index_copy_(0, order[stays], kept[stays])


def _holding(needed: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """Likeliest tokens, as few as are quickly found, that hold at least the weight `needed`."""
    for num_candidates in _NUM_CANDIDATES:
        if num_candidates < weights.shape[0]:
            order = _likeliest_first(logits, num_candidates)
            if weights[order].sum() >= needed:
                return order
    return _likeliest_first(logits, weights.shape[0])


def _likeliest_first(logits: Tensor, num_tokens: int) -> Tensor:
    """Token ids by falling logit, equal ones by rising id."""
    least = torch.topk(logits, num_tokens, sorted=False).values.min()
    ids = (logits >= least).nonzero().flatten()  # topk alone picks any of those that are equal
    return ids[logits[ids].sort(descending=True, stable=True).indices[:num_tokens]]
