"""Stop strings found in pieces are those of the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.stop import StopMatcher

ALPHABET = "abé"  # few letters, so that stop strings overlap
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)
PIECES = st.lists(st.text(ALPHABET, max_size=8), max_size=8)


def whole_text_answer(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """By the definition: the shortest beginning that ends with a stop string, without the longest such."""
    for end in range(len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        if matching:
            return text[: end - max(map(len, matching))], True
    return text, False


@given(PIECES, STOPS)
@settings(max_examples=1_000)
def test_any_chunking_gives_the_whole_texts_answer(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    assert (shown, matcher.matched) == whole_text_answer("".join(pieces), stops)


@given(PIECES, STOPS)
def test_no_more_is_held_back_than_may_become_a_stop_string(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    matcher = StopMatcher(stops)
    text = "".join(pieces)
    shown = "".join(matcher.push(piece) for piece in pieces)
    held = text[len(shown) :]
    assert matcher.matched or not held or any(stop.startswith(held) for stop in stops)


@given(PIECES, STOPS)
def test_the_piece_that_completes_the_stop_string_is_the_one_that_matches(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    matcher = StopMatcher(stops)
    seen = ""
    for piece in pieces:
        matcher.push(piece)
        seen += piece
        assert matcher.matched == whole_text_answer(seen, stops)[1]
