"""The forecast peak is that of letting all sequences grow token by token."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.forecast import PeakForecast

ENTRIES = st.tuples(st.integers(0, 70), st.integers(0, 70))  # tokens now, tokens remaining
HELD = st.lists(ENTRIES, max_size=10)
BLOCK_SIZES = st.sampled_from([1, 2, 3, 16, 32])


def simulated_peak(block_size: int, held: list[tuple[int, int]], base_blocks: int) -> int:
    """Decodes all one token per step, frees each after its last."""
    num_steps = max((remaining for _, remaining in held), default=0)
    return base_blocks + max(
        sum(-(-(now + step) // block_size) for now, remaining in held if step <= remaining)
        for step in range(num_steps + 1)
    )


@given(BLOCK_SIZES, HELD, ENTRIES, st.integers(0, 5))
@settings(max_examples=500)
def test_the_peak_with_a_candidate_is_the_simulated_one(
    block_size: int, held: list[tuple[int, int]], candidate: tuple[int, int], base_blocks: int
) -> None:
    forecast = PeakForecast(block_size, held, base_blocks)
    assert forecast.peak_blocks_with(*candidate) == simulated_peak(
        block_size, [*held, candidate], base_blocks
    )


@given(BLOCK_SIZES, HELD, HELD, ENTRIES)
@settings(max_examples=500)
def test_sequences_added_one_by_one_count_as_if_they_had_been_there(
    block_size: int, held: list[tuple[int, int]], added: list[tuple[int, int]], candidate: tuple[int, int]
) -> None:
    forecast = PeakForecast(block_size, held)
    for entry in added:
        forecast.add(*entry)
    assert forecast.peak_blocks_with(*candidate) == simulated_peak(block_size, [*held, *added, candidate], 0)


@given(BLOCK_SIZES, HELD, ENTRIES, ENTRIES)
def test_asking_changes_nothing(
    block_size: int, held: list[tuple[int, int]], first: tuple[int, int], second: tuple[int, int]
) -> None:
    forecast = PeakForecast(block_size, held)
    forecast.peak_blocks_with(*first)
    assert forecast.peak_blocks_with(*second) == PeakForecast(block_size, held).peak_blocks_with(*second)
