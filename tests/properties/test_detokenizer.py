"""Detokenising id by id equals the tokenizer's decoding of the whole, whatever the ids."""

from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.text.detokenizer import Detokenizer
from gateway.text.token_bytes import read_token_bytes
from tests.builders.tokenizers import byte_level_tokenizer_json, sentencepiece_tokenizer_json

BYTE_LEVEL = Tokenizer.from_str(byte_level_tokenizer_json())
BYTE_LEVEL_BYTES = read_token_bytes(byte_level_tokenizer_json())
SENTENCEPIECE = Tokenizer.from_str(sentencepiece_tokenizer_json())
SENTENCEPIECE_BYTES = read_token_bytes(sentencepiece_tokenizer_json())


def pieces_of(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=60))
def test_byte_level_ids_decode_as_the_whole(ids: list[int]) -> None:
    text = "".join(pieces_of(Detokenizer(BYTE_LEVEL_BYTES, at_start=True), ids))
    assert text == BYTE_LEVEL.decode(ids, skip_special_tokens=True)


@given(st.text(max_size=80))
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    assume(BYTE_LEVEL.decode(ids) == text)
    assert "".join(pieces_of(Detokenizer(BYTE_LEVEL_BYTES, at_start=True), ids)) == text


# Bytes come as whole characters: where one is invalid, the library replaces the whole run of bytes around it.
WHOLE_TOKENS = [0, 1, 2, *range(259, SENTENCEPIECE.get_vocab_size())]
SENTENCEPIECE_PARTS = st.one_of(
    st.sampled_from(WHOLE_TOKENS).map(lambda token_id: [token_id]),
    st.characters(exclude_categories=["Cs"]).map(lambda character: [3 + byte for byte in character.encode()]),
)


@given(st.lists(SENTENCEPIECE_PARTS, max_size=40))
def test_sentencepiece_ids_decode_as_the_whole(parts: list[list[int]]) -> None:
    ids = [token_id for part in parts for token_id in part]
    expected = SENTENCEPIECE.decode(ids, skip_special_tokens=True)
    assert "".join(pieces_of(Detokenizer(SENTENCEPIECE_BYTES, at_start=True), ids)) == expected


@given(st.binary(max_size=40))
def test_sentencepiece_bytes_decode_as_utf8_with_replacements(raw: bytes) -> None:
    ids = [3 + byte for byte in raw]
    text = "".join(pieces_of(Detokenizer(SENTENCEPIECE_BYTES, at_start=False), ids))
    assert text == raw.decode("utf-8", errors="replace")


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=60), st.integers(0, 60))
def test_what_was_given_out_is_never_taken_back(ids: list[int], cut: int) -> None:
    shown = "".join(pieces_of(Detokenizer(BYTE_LEVEL_BYTES, at_start=True), ids[:cut])[:-1])
    assert "".join(pieces_of(Detokenizer(BYTE_LEVEL_BYTES, at_start=True), ids)).startswith(shown)
