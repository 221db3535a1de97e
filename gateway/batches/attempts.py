"""How often an item is run that its worker did not survive, and how long it waits in between. Pure.

An item that kills its worker takes those along that run beside it. From its second attempt on each waits for
a while of its own, so that the guilty one is soon alone, and the others are done.
"""

from typing import Final

MOST_ATTEMPTS: Final = 10
LONGEST_PAUSE_SECONDS: Final = 60.0


def pause_seconds(attempt: int, chance: float) -> float:
    """How long an item waits that was claimed `attempt` times; `chance` is from 0 up to 1."""
    if attempt <= 1:
        return 0.0
    return chance * min(LONGEST_PAUSE_SECONDS, 2.0 ** (attempt - 1))


def is_hopeless(attempt: int) -> bool:
    """Whether an item that was claimed so often is given up."""
    return attempt >= MOST_ATTEMPTS
