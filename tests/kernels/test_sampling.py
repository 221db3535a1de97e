"""Sampling: the right distribution, the same draw in any company, and the edges of every filter."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from kernels.sampling import reference
from kernels.sampling.reference import SamplingRow, uniform

PLAIN = SamplingRow(temperature=1.0, top_k=0, top_p=1.0, seed=7, position=3)
WEIGHTS = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])


def chosen(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """The reference's tokens; native operators are compared with it elsewhere."""
    token_ids, _ = reference.sample(logits, rows)
    return token_ids


def draws(row: SamplingRow, logits: torch.Tensor, count: int) -> Counter[int]:
    rows = [row._replace(position=position) for position in range(count)]
    return Counter(chosen(logits.repeat(count, 1), rows).tolist())


def chi_square(counts: Counter[int], probabilities: torch.Tensor) -> float:
    expected = probabilities * sum(counts.values())
    return sum((counts[i] - float(e)) ** 2 / float(e) for i, e in enumerate(expected) if e > 0)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "kept"),
    [
        (1.0, 0, 1.0, [0, 1, 2, 3, 4]),
        (0.5, 0, 1.0, [0, 1, 2, 3, 4]),
        (2.0, 0, 1.0, [0, 1, 2, 3, 4]),
        (1.0, 3, 1.0, [1, 3, 4]),
        (1.0, 0, 0.6, [1, 3]),
        (1.0, 0, 0.66, [1, 3, 4]),
        (1.0, 4, 0.75, [1, 3, 4]),  # of the four likeliest, 0.75 * 0.95 of the weight
    ],
)
def test_draws_follow_the_filtered_distribution(
    temperature: float, top_k: int, top_p: float, kept: list[int]
) -> None:
    probabilities = torch.zeros(5)
    probabilities[kept] = WEIGHTS[kept] ** (1 / temperature)
    probabilities /= probabilities.sum()
    row = PLAIN._replace(temperature=temperature, top_k=top_k, top_p=top_p)
    counts = draws(row, WEIGHTS.log(), 4000)
    assert set(counts) == set(kept)
    assert chi_square(counts, probabilities) < 18.5  # 0.1 % at four degrees of freedom


@pytest.mark.parametrize(
    "row",
    [
        PLAIN._replace(temperature=0.0),
        PLAIN._replace(temperature=1e-6),
        PLAIN._replace(temperature=1e-30),
        PLAIN._replace(top_k=1),
        PLAIN._replace(top_p=1e-9),
        PLAIN._replace(top_p=0.0),
    ],
    ids=str,
)
def test_the_narrowest_settings_are_greedy(row: SamplingRow) -> None:
    logits = torch.randn(200, generator=torch.Generator().manual_seed(1)) * 3
    assert draws(row, logits, 50) == {int(logits.argmax()): 50}


def test_of_equal_logits_the_lowest_id_is_greedy() -> None:
    logits = torch.tensor([0.0, 2.0, 2.0, 1.0])
    assert draws(PLAIN._replace(temperature=0.0), logits, 3) == {1: 3}
    assert draws(PLAIN._replace(top_k=1), logits, 3) == {1: 3}


@pytest.mark.parametrize("top_k", [5, 6, 10_000])
def test_a_top_k_of_the_whole_vocabulary_changes_no_draw(top_k: int) -> None:
    assert draws(PLAIN._replace(top_k=top_k), WEIGHTS.log(), 200) == draws(PLAIN, WEIGHTS.log(), 200)


@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
def test_a_nucleus_larger_than_the_first_candidates_is_found(spread: float) -> None:
    logits = torch.randn(6000, generator=torch.Generator().manual_seed(2)) * spread
    order = logits.sort(descending=True, stable=True).indices
    cumulative = logits.double().softmax(0)[order].cumsum(0)
    nucleus = set(order[: int((cumulative < 0.8).sum()) + 1].tolist())
    drawn = set(draws(PLAIN._replace(top_p=0.8), logits, 60))
    assert drawn <= nucleus
    assert len(drawn) > 3


def test_a_row_draws_the_same_alone_and_in_any_company() -> None:
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(3))
    rows = [
        PLAIN._replace(seed=index, top_p=top_p, temperature=temperature)
        for index, (top_p, temperature) in enumerate(
            [(1.0, 1.0), (0.9, 0.7), (1.0, 0.0), (0.5, 2.0), (1.0, 1.0), (0.9, 1.0)]
        )
    ]
    together = chosen(logits.clone(), rows).tolist()
    backwards = chosen(logits.flip(0).clone(), rows[::-1]).tolist()[::-1]
    alone = [int(chosen(logits[i : i + 1].clone(), [rows[i]])) for i in range(6)]
    assert together == alone == backwards


def test_banned_tokens_are_never_chosen() -> None:
    banned = (1, 3)
    for row in (PLAIN, PLAIN._replace(temperature=0.0), PLAIN._replace(top_k=2)):
        counts = draws(row._replace(banned_token_ids=banned), WEIGHTS.log(), 300)
        assert not set(counts) & set(banned)


def test_tokens_without_weight_are_never_drawn() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    assert set(draws(PLAIN, logits, 500)) == {1, 3}


def test_seed_and_position_both_change_the_draw() -> None:
    assert len({uniform(seed, position) for seed in range(30) for position in range(30)}) == 900


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = [uniform(seed, position) for seed in (0, 2**63, -5) for position in range(2000)]
    assert all(0 <= number < 1 for number in numbers)
    counts = Counter(int(number * 10) for number in numbers)
    assert chi_square(counts, torch.full((10,), 0.1)) < 27.9  # 0.1 % at nine degrees of freedom
