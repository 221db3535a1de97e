"""Finds stop strings in a text that arrives in pieces. Pure; knows no tokens.

The answer is that of the whole text: the stop string that is complete first wins (of two complete at the same
place, the longer), and the text ends before it.
"""


class StopMatcher:
    """Gives text on as soon as it cannot be the beginning of a stop string any more.

        stops = ("END",)   push("the E") -> "the "   push("N") -> ""   push("or") -> "ENor"

    After a match (`matched`), nothing more is given on.
    """

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.matched = False
        self._stops = stops
        self._held = ""

    @property
    def has_any(self) -> bool:
        """Whether there is a stop string to look for."""
        return bool(self._stops)

    def push(self, text: str) -> str:
        """The text that is certain now: up to a stop string, or to what may become one."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        pending = self._held + text
        start = _first_match(pending, self._stops)
        if start is not None:
            self.matched, self._held = True, ""
            return pending[:start]
        certain = len(pending) - _longest_beginning(pending, self._stops)
        self._held = pending[certain:]
        return pending[:certain]

    def flush(self) -> str:
        """The text held back, once the whole text is known to be over."""
        held, self._held = self._held, ""
        return held


def _first_match(text: str, stops: tuple[str, ...]) -> int | None:
    """Where the stop string begins that ends first in `text`; of several, the longest."""
    ends = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return min(ends)[1] if ends else None


def _longest_beginning(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that some stop string begins with."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for length in range(longest, 0, -1):
        ending = text[-length:]
        if any(len(stop) > length and stop.startswith(ending) for stop in stops):
            return length
    return 0
