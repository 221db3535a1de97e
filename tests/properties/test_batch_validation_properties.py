"""Whatever a file holds, validation ends with items and faults that lead to its lines."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.batches.lines import BYTE_ORDER_MARK, read_lines
from tests.builders.batch_input import COMPLETIONS, chat_line, completion_line, served_model, validated

UNHURRIED = settings(deadline=None)  # a busy machine fails no test
MODEL = served_model()
GOOD = chat_line("good")
PIECES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"\n", b"\r\n", b"{", b"}", b'"custom_id":', b"null", b"\0", b"\xff", BYTE_ORDER_MARK]),
    st.sampled_from([GOOD, completion_line("other"), chat_line("long" * 200)]),
    st.text(max_size=10).map(chat_line),
)
FILES = st.lists(PIECES, max_size=12).map(b"".join)


@UNHURRIED
@given(FILES, st.integers(1, 300))
def test_whatever_the_bytes_each_line_is_an_item_a_fault_or_blank(
    content: bytes, max_line_bytes: int
) -> None:
    outcome = validated(content, max_line_bytes=max_line_bytes, models=(MODEL,))
    lines = dict(enumerate(content.removeprefix(BYTE_ORDER_MARK).split(b"\n"), start=1))
    told = {fault.line for fault in outcome.faults}
    items = {item.line for item in outcome.items}
    full = {number for number, line in lines.items() if line.strip()}
    assert not told & items
    if full:
        assert told | items == full
    else:
        assert told == {None}
    for item in outcome.items:
        assert content[item.first_byte :][: item.num_bytes] == lines[item.line]


@UNHURRIED
@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=8,
        ),
        max_size=4,
    )
)
def test_whatever_a_body_says_it_is_answered_not_raised(body: dict[str, object]) -> None:
    for endpoint, line in (("/v1/chat/completions", chat_line), (COMPLETIONS, completion_line)):
        outcome = validated(line("one", **body), endpoint=endpoint, models=(MODEL,))
        assert len(outcome.items) + len(outcome.faults) == 1


@UNHURRIED
@given(st.lists(st.integers(0, 12), max_size=20), st.booleans(), st.booleans(), st.integers(1, 10))
def test_each_line_is_where_it_is_said_to_be(
    lengths: list[int], is_marked: bool, ends: bool, max_bytes: int
) -> None:
    contents = [bytes([65 + number]) * length for number, length in enumerate(lengths)]
    content = b"\n".join(contents) + b"\n" * ends
    marked = BYTE_ORDER_MARK * is_marked + content
    found = list(read_lines(io.BytesIO(marked), max_bytes=max_bytes))
    expected = content.removesuffix(b"\n").split(b"\n") if marked else []
    assert [line.data for line in found] == [line if len(line) <= max_bytes else None for line in expected]
    for line, whole in zip(found, expected, strict=True):
        assert marked[line.first_byte :].startswith(whole)
