"""Slices of a blob come as asked for, in few reads."""

from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from gateway.files.slices import LONGEST_READ, read_slices, runs_of

CONTENT = bytes(range(256))


@given(lists(tuples(integers(0, 200), integers(0, 50)), max_size=30))
def test_each_slice_is_what_was_asked_for(slices: list[tuple[int, int]]) -> None:
    parts = read_slices(slices, lambda start, num: CONTENT[start : start + num])
    assert parts == [CONTENT[start : start + num] for start, num in slices]


@given(lists(integers(1, 50), min_size=1, max_size=30))
def test_slices_that_touch_are_one_read(lengths: list[int]) -> None:
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    assert len(runs_of(list(zip(starts, lengths, strict=True)))) == 1


def test_no_read_is_longer_than_it_may_be_but_for_one_slice() -> None:
    half = LONGEST_READ // 2 + 1
    assert len(runs_of([(0, half), (half, half), (2 * half, 3 * half)])) == 3
