"""What bytes each token id stands for, read from a tokenizer.json. Knows two kinds of decoders.

Byte-level vocabularies (GPT-2, Llama 3, Qwen) write each byte as one printable character; sentencepiece-like
ones (Llama 2, Mistral) write a space as U+2581 and a byte without a token of its own as <0x0A>.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

SPACE_MARK: Final = "▁"
BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnknownDecoderError(Exception):
    """The tokenizer turns ids into text in a way that is not known here."""


@dataclass(frozen=True, kw_only=True)
class TokenBytes:
    """`by_id[i]` is what token i adds to the text; empty for special tokens and ids without a token.

    `drops_first_space`: a text's very first character is left out when it is a space.
    """

    by_id: tuple[bytes, ...]
    drops_first_space: bool


def read_token_bytes(tokenizer_json: str) -> TokenBytes:
    """The bytes of every token. Raises UnknownDecoderError. Takes tens of milliseconds."""
    kinds = {part["type"]: part for part in _decoder_parts(tokenizer_json)}
    if "ByteLevel" in kinds:
        return TokenBytes(by_id=_table(tokenizer_json, _byte_level_reader()), drops_first_space=False)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        metaspace = kinds.get("Metaspace", {})
        drops_first_space = metaspace.get("prepend_scheme", "never") != "never" or "Strip" in kinds
        return TokenBytes(
            by_id=_table(tokenizer_json, _read_sentencepiece), drops_first_space=drops_first_space
        )
    raise UnknownDecoderError(f"a tokenizer with the decoder {sorted(kinds) or None} is not supported")


def _decoder_parts(tokenizer_json: str) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.decode(tokenizer_json).get("decoder")
    if decoder is None:
        return
    yield from decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _table(tokenizer_json: str, read: Callable[[str], bytes]) -> tuple[bytes, ...]:
    tokenizer: Tokenizer = Tokenizer.from_str(tokenizer_json)
    table = [b""] * (max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        table[token_id] = read(token)
    for token_id, added in tokenizer.get_added_tokens_decoder().items():
        if added.special:
            table[token_id] = b""
    return tuple(table)


def _byte_level_reader() -> Callable[[str], bytes]:
    byte_of = {character: byte for byte, character in enumerate(byte_level_alphabet())}

    def read(token: str) -> bytes:
        if all(character in byte_of for character in token):
            return bytes(byte_of[character] for character in token)
        return token.encode()  # an added token is written as it is

    return read


def byte_level_alphabet() -> list[str]:
    """The printable character that stands for each of the 256 bytes, in the order of the bytes."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


def _read_sentencepiece(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE_MARK, " ").encode()
