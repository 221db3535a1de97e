"""How often a server's process looks for garbage: seldom, since hardly anything of it is in cycles."""

import gc
from typing import Final

YOUNG_OBJECTS: Final = (
    20_000  # a few dozen requests' worth: nearly all are gone by then without being looked for
)


def collect_seldom() -> None:
    """The garbage collector took a seventh of a busy gateway's time, to find next to nothing.

    What is loaded by now stays and is not looked through again.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
