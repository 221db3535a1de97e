"""Which bytes a Range header asks for."""

import pytest

from gateway.api.byte_range import Span, wanted_span
from gateway.errors import RangeNotSatisfiable


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-9", Span(0, 10)),
        ("bytes=19-", Span(19, 38)),
        ("bytes=-5", Span(33, 38)),
        ("bytes=-99", Span(0, 38)),
        ("bytes=30-999", Span(30, 38)),
        ("bytes=37-37", Span(37, 38)),
        (None, None),
        ("bytes=0-1,4-5", None),
        ("bytes=5-1", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("lines=1-2", None),
    ],
)
def test_one_range_is_a_span_and_anything_else_the_whole(header: str | None, span: Span | None) -> None:
    assert wanted_span(header, 38) == span


@pytest.mark.parametrize("header", ["bytes=38-", "bytes=-0", "bytes=100-200"])
def test_bytes_that_are_not_there_cannot_be_had(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable):
        wanted_span(header, 38)


def test_nothing_of_an_empty_file_can_be_had() -> None:
    with pytest.raises(RangeNotSatisfiable):
        wanted_span("bytes=0-", 0)
