"""Tokens become text up to a stop string, and only tokens up to it count."""

from gateway.text.token_bytes import read_token_bytes
from gateway.text.transcript import Transcript
from tests.builders.engine_messages import byte_level_tokenizer_json, token_ids_of

TOKEN_BYTES = read_token_bytes(byte_level_tokenizer_json())


def transcript(*stops: str, min_tokens: int = 0) -> Transcript:
    return Transcript(TOKEN_BYTES, stops=stops, min_tokens=min_tokens, at_start=True)


def test_a_character_appears_with_its_last_byte() -> None:
    answer = transcript()
    first, second = token_ids_of("é")
    assert [answer.add((first,)), answer.add((second,))] == ["", "é"]


def test_a_character_cut_short_is_replaced_at_the_end() -> None:
    answer = transcript()
    assert answer.add(token_ids_of("é")[:1]) + answer.finish() == "\ufffd"


def test_special_tokens_count_but_add_no_text() -> None:
    answer = transcript()
    assert answer.add((*token_ids_of("a"), 2)) == "a"
    assert answer.num_tokens == 2


def test_tokens_past_a_stop_string_do_not_count() -> None:
    answer = transcript("lo")
    assert answer.add(token_ids_of("hello world")) == "hel"
    assert answer.stopped
    assert answer.num_tokens == 5


def test_text_held_for_a_stop_string_that_never_comes_is_given_at_the_end() -> None:
    answer = transcript("END")
    assert answer.add(token_ids_of("the E")) == "the "
    assert answer.finish() == "E"


def test_stop_strings_wait_for_the_least_number_of_tokens() -> None:
    answer = transcript("a", min_tokens=3)
    assert answer.add(token_ids_of("aabaa")) == "aab"
    assert (answer.stopped, answer.num_tokens) == (True, 4)
