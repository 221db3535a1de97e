"""Turns token ids into text one by one: exact, in constant time a token, never splitting a character."""

import codecs
from collections.abc import Iterable
from typing import Final

from gateway.text.token_bytes import TokenBytes

_new_utf8_decoder: Final = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One text being written. Bytes that are no UTF-8 become U+FFFD, as in the whole text's decoding.

    `at_start` says that the text begins here, rather than going on from a prompt: some vocabularies put a
    space before every first word, which is not part of the text.
    """

    __slots__ = ("_by_id", "_drop_space", "_utf8")

    def __init__(self, token_bytes: TokenBytes, *, at_start: bool) -> None:
        self._by_id = token_bytes.by_id
        self._drop_space = at_start and token_bytes.drops_first_space
        self._utf8 = _new_utf8_decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that are whole with this token; often one token's text, sometimes none.

        An id outside the vocabulary adds nothing: an engine may pad its vocabulary.
        """
        return self.push_all((token_id,))

    def push_all(self, token_ids: Iterable[int]) -> str:
        """The characters that are whole with these tokens."""
        by_id = self._by_id
        num_known = len(by_id)
        known = [by_id[token_id] for token_id in token_ids if 0 <= token_id < num_known]
        return self._trim(self._utf8.decode(b"".join(known)))

    def flush(self) -> str:
        """What a character that was never completed stands for, at the end of the text."""
        return self._trim(self._utf8.decode(b"", final=True))

    def _trim(self, text: str) -> str:
        if self._drop_space and text:
            self._drop_space = False
            return text.removeprefix(" ")
        return text
