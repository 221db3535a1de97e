"""All that turns one model's text into ids and back, made from what an engine says of it."""

from dataclasses import dataclass

import msgspec

from gateway.text.chat_template import ChatTemplate
from gateway.text.token_bytes import TokenBytes, read_token_bytes
from gateway.text.tokenizer import Tokenizer


class TextSource(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of its model's text; may be passed on to another process."""

    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None


@dataclass(frozen=True, kw_only=True)
class TextModel:
    """`chat_template` is None for a model that only continues text."""

    source: TextSource
    tokenizer: Tokenizer
    token_bytes: TokenBytes
    chat_template: ChatTemplate | None


class UnusableTextModelError(Exception):
    """The tokenizer or the template that an engine sent cannot be used; the text says why."""


def build_text_model(source: TextSource) -> TextModel:
    """Reads tokenizer and template; up to a second for a large vocabulary. Raises UnusableTextModelError."""
    try:
        return TextModel(
            source=source,
            tokenizer=Tokenizer(source.tokenizer_json),
            token_bytes=read_token_bytes(source.tokenizer_json),
            chat_template=(
                ChatTemplate(source.chat_template, bos_token=source.bos_token, eos_token=source.eos_token)
                if source.chat_template
                else None
            ),
        )
    except Exception as error:  # `tokenizers` raises bare Exception for a file that it cannot read
        raise UnusableTextModelError(str(error)) from error
