"""Native sampling against the reference: the same token, or one at the very border of the same draw."""

import ctypes

import pytest
import torch
from torch import Tensor

from kernels.sampling import native, reference
from kernels.sampling.reference import SamplingRow

GREEDY = SamplingRow(temperature=0, top_k=0, top_p=1, seed=0, position=0)


def rows_of(count: int, *, temperature: float, top_k: int, top_p: float) -> list[SamplingRow]:
    return [
        SamplingRow(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed * 7919, position=seed + 3)
        for seed in range(count)
    ]


def both(library: ctypes.CDLL, logits: Tensor, rows: list[SamplingRow]) -> tuple[Tensor, Tensor]:
    expected, _ = reference.sample(logits.clone(), rows)
    actual, is_finite = native.sample(library, logits.clone(), rows)
    assert is_finite.all()
    return actual, expected


@pytest.mark.parametrize("vocab_size", [1, 5, 63, 127, 3000])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (1, 1.0), (5, 1.0), (700, 1.0), (0, 0.9), (0, 0.1), (50, 0.8), (0, 0.0)]
)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_draws_what_the_reference_draws(
    library: ctypes.CDLL, vocab_size: int, top_k: int, top_p: float, temperature: float
) -> None:
    logits = torch.randn(40, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3
    rows = rows_of(40, temperature=temperature, top_k=top_k, top_p=top_p)
    actual, expected = both(library, logits, rows)
    # A draw may fall on a border, where the last bit of a sum decides; one in forty is not such luck twice.
    assert int((actual != expected).sum()) <= 1


def test_greedy_takes_the_first_of_the_largest(library: ctypes.CDLL) -> None:
    logits = torch.zeros(3, 130)
    logits[1, [77, 100]] = 2.0
    logits[2, 129] = 1.0
    actual, _ = native.sample(library, logits, [GREEDY] * 3)
    assert actual.tolist() == [0, 77, 129]


def test_banned_tokens_are_never_taken(library: ctypes.CDLL) -> None:
    logits = torch.zeros(2, 10)
    logits[:, 4] = 50.0
    logits[:, 5] = 20.0
    banned = SamplingRow(temperature=1, top_k=0, top_p=1, seed=1, position=1, banned_token_ids=(4,))
    actual, _ = native.sample(library, logits, [GREEDY, banned])
    assert actual.tolist() == [4, 5]


@pytest.mark.parametrize("fault", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_number_is_named_and_costs_no_other(library: ctypes.CDLL, fault: float) -> None:
    logits = torch.randn(3, 127)
    logits[1, 126] = fault
    _, is_finite = native.sample(library, logits, [GREEDY] * 3)
    assert is_finite.tolist() == [True, False, True]


@pytest.mark.parametrize("top_k", [3, 600])
def test_equal_logits_at_the_border_of_top_k_are_kept_by_rising_id(library: ctypes.CDLL, top_k: int) -> None:
    logits = torch.zeros(200, 1000)
    rows = rows_of(200, temperature=1.0, top_k=top_k, top_p=1.0)
    actual, expected = both(library, logits, rows)
    assert int(actual.max()) < top_k
    assert torch.equal(actual, expected)
