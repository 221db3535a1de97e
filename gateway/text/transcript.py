"""The text of one answer as it grows: tokens in, characters out, up to a stop string. Pure.

It knows to which token each character belongs, so that tokens past a stop string can be left uncharged.
"""

from gateway.text.detokenizer import Detokenizer
from gateway.text.stop import StopMatcher
from gateway.text.token_bytes import TokenBytes


class Transcript:
    """`num_tokens` counts up to the token that completed a stop string (`stopped`).

    Stop strings are looked for only after `min_tokens` tokens, as the model's own end is.
    """

    __slots__ = ("_detokenizer", "_min_tokens", "_stops", "num_tokens")

    def __init__(
        self, token_bytes: TokenBytes, *, stops: tuple[str, ...], min_tokens: int, at_start: bool
    ) -> None:
        self.num_tokens = 0
        self._detokenizer = Detokenizer(token_bytes, at_start=at_start)
        self._stops = StopMatcher(stops)
        self._min_tokens = min_tokens

    @property
    def has_stops(self) -> bool:
        """Whether stop strings are looked for."""
        return self._stops.has_any

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been completed; nothing more is added then."""
        return self._stops.matched

    def add(self, token_ids: tuple[int, ...]) -> str:
        """The characters that are certain with these tokens."""
        if not self.has_stops:  # nothing can end it between two of them
            self.num_tokens += len(token_ids)
            return self._detokenizer.push_all(token_ids)
        certain = []
        for token_id in token_ids:
            if self.stopped:
                break
            self.num_tokens += 1
            text = self._detokenizer.push(token_id)
            certain.append(text if self.num_tokens < self._min_tokens else self._stops.push(text))
        return "".join(certain)

    def finish(self) -> str:
        """The rest, once no more tokens come: what was held back, and U+FFFD for a character cut short."""
        return self._stops.push(self._detokenizer.flush()) + self._stops.flush()
