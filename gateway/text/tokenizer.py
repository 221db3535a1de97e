"""Text to token ids with a model's own tokenizer, without torch or transformers."""

import asyncio
from typing import Final

from tokenizers import Tokenizer as HuggingFaceTokenizer

LONGEST_INLINE_CHARACTERS: Final = 4_000  # about 1 ms of encoding; more than that would hold up the loop


class Tokenizer:
    """Encodes text. Safe to use from several requests at once."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer: HuggingFaceTokenizer = HuggingFaceTokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    async def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of `text`; long texts are encoded in a thread, so that the loop stays free."""
        if len(text) <= LONGEST_INLINE_CHARACTERS:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode_long, text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _encode_long(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """A batch of one: `encode` keeps the interpreter's lock, and so the loop, for all of its seconds."""
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)
