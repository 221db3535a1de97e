"""Keys as text: what is made is recognised, what is not made is not."""

from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.keys.secret import ALPHABET, digest, make_key, public_id, redact


def test_a_made_key_is_recognised_and_named_by_its_id() -> None:
    key = make_key()
    assert public_id(key.value) == key.id


def test_no_two_keys_are_alike() -> None:
    assert len({make_key().value for _ in range(100)}) == 100


@given(st.text())
def test_arbitrary_text_is_no_key(text: str) -> None:
    assert public_id(text) is None


KEY = make_key().value  # one for all examples: what hypothesis draws must not depend on chance


@given(position=st.integers(0, len(KEY) - 1), wrong=st.sampled_from(ALPHABET + "-"))
def test_one_wrong_character_is_noticed(position: int, wrong: str) -> None:
    assume(wrong != KEY[position])
    assert public_id(KEY[:position] + wrong + KEY[position + 1 :]) is None


def test_the_digest_depends_on_the_pepper() -> None:
    value = make_key().value
    assert digest(value, pepper=b"one") != digest(value, pepper=b"two")


def test_neither_repr_nor_redacted_form_shows_the_secret() -> None:
    key = make_key()
    secret = key.value.rsplit("-", 1)[1]
    assert secret not in repr(key)
    assert secret[:-4] not in redact(key.value)
    assert redact(key.value).endswith(key.value[-4:])


@given(st.text(max_size=200))
def test_redaction_of_anything_shows_four_characters_at_most(text: str) -> None:
    assert len(redact(text)) <= len("sk-…") + 4
