"""Word by word, a text has the very ids that its tokenizer gives it as a whole."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from gateway.text.wordwise import WordwiseEncoder, keeps_words_apart, words_of
from tests.builders.tokenizers import TEXTS, byte_level_tokenizer_json, sentencepiece_tokenizer_json

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
LLAMA = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
UNHURRIED = settings(deadline=None, max_examples=100)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


RULES = {
    "gpt": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen": split(QWEN),
    "llama": split(LLAMA),
}


@cache
def tokenizer(rules: str) -> Tokenizer:
    made = Tokenizer(models.BPE())
    if rules == "qwen":
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = RULES[rules]
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*TEXTS * 5, "a  b   c \n\n d\t\te !!\n ?? 's 12 345"] * 5, trainer)
    return made


def whole(rules: str, texts: Sequence[str]) -> list[list[int]]:
    return [tokenizer(rules).encode(text, add_special_tokens=False).ids for text in texts]


SPACES = st.sampled_from(
    [" ", "  ", "\n", " \n", "\n ", "\t", "\r\n", "\u00a0", "\u2003", "\x1c", "\x85", "\u3000"]
)
WORDS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [
            "Hello",
            "it's",
            "12",
            "3456",
            "...",
            "!\n",
            "e\u0301",
            "\u0301",
            "漢字",
            "<|im_end|>",
            "<|im",
            "👩‍👩‍👧",
        ]
    ),
)
TEXT = st.lists(st.one_of(SPACES, WORDS), max_size=25).map("".join)


@pytest.mark.parametrize("rules", RULES)
@UNHURRIED
@given(texts=st.lists(TEXT, max_size=4))
def test_ids_are_those_of_the_whole_text(rules: str, texts: list[str]) -> None:
    assert keeps_words_apart(tokenizer(rules).to_str())
    encoder = WordwiseEncoder(lambda words: whole(rules, words))
    assert encoder.encode_all(texts) == whole(rules, texts)
    assert encoder.encode_all(texts) == whole(rules, texts)


@given(TEXT)
def test_words_one_after_the_other_are_the_text(text: str) -> None:
    assert "".join(words_of(text)) == text


def test_tokens_that_reach_over_spaces_are_not_cut() -> None:
    assert not keeps_words_apart(byte_level_tokenizer_json())  # has one with a space in it
    assert not keeps_words_apart(sentencepiece_tokenizer_json())


@pytest.mark.parametrize(
    "token", [AddedToken("<x>", rstrip=True), AddedToken("<x>", lstrip=True), AddedToken("a b")]
)
def test_an_added_token_that_takes_spaces_is_not_cut(token: AddedToken) -> None:
    made = Tokenizer.from_str(tokenizer("gpt").to_str())
    made.add_tokens([token])
    assert not keeps_words_apart(made.to_str())


@pytest.mark.parametrize(
    "rules",
    [
        pre_tokenizers.Metaspace(),
        pre_tokenizers.Digits(),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        split(r"\s+|\S+ \S+"),
    ],
)
def test_rules_that_are_not_known_to_split_words_are_not_cut(rules: pre_tokenizers.PreTokenizer) -> None:
    made = Tokenizer.from_str(tokenizer("gpt").to_str())
    made.pre_tokenizer = rules
    assert not keeps_words_apart(made.to_str())


def test_a_bounded_number_of_words_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.text.wordwise.MOST_CHARACTERS", 10)
    asked: list[str] = []

    def note(words: Sequence[str]) -> list[list[int]]:
        asked.extend(words)
        return [[len(word)] for word in words]

    encoder = WordwiseEncoder(note)
    for text in ("one two", "one two", "three four", "one"):
        encoder.encode_all([text])
    assert sorted(asked) == sorted(["one", " two", "three", " four", "one"])
