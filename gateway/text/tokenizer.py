"""Text to token ids with a model's own tokenizer, without torch or transformers."""

import asyncio
from collections.abc import Sequence
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

    @property
    def num_special_tokens(self) -> int:
        """How many are added to a text when they are asked for."""
        return self._tokenizer.num_special_tokens_to_add(is_pair=False)

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """The ids of each text. Blocks, without keeping the interpreter's lock: not for the loop's thread."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _encode_long(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """A batch of one: `encode` keeps the interpreter's lock, and so the loop, for all of its seconds."""
        (ids,) = self.encode_all([text], add_special_tokens=add_special_tokens)
        return tuple(ids)
