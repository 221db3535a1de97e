"""How long a batch may take: "24h" as in the published API, and as an extension other lengths. Pure."""

import re
from datetime import timedelta
from typing import Final

SHORTEST: Final = timedelta(minutes=1)
LONGEST: Final = timedelta(days=30)
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,6})([mhd])", re.ASCII)
_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def window_of(text: str) -> timedelta:
    """The length that a text like `24h` says. Raises ValueError, in words for whoever wrote it."""
    found = _WINDOW.fullmatch(text)
    window = int(found[1]) * _UNITS[found[2]] if found else timedelta()
    if not SHORTEST <= window <= LONGEST:
        raise ValueError("must be '24h', or another number of minutes (m), hours (h) or days (d): 1m to 30d")
    return window
