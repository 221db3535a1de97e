"""What waits in one class: long prompts apart, so that a full long lane holds up no short prompt."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from engine.core.fair_share import FairQueue
from engine.core.sequence import Sequence


@dataclass(frozen=True)
class Lanes:
    """Fair within each lane; between them, first come first served."""

    short: FairQueue[Sequence] = field(default_factory=FairQueue)
    long: FairQueue[Sequence] = field(default_factory=FairQueue)

    def __len__(self) -> int:
        return len(self.short) + len(self.long)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self.short, self.long)

    def next(self, *, may_be_long: bool) -> Sequence | None:
        """Whose turn it is: of the two lanes' heads the one that came first."""
        heads = [self.short.peek(), self.long.peek() if may_be_long else None]
        return min(
            (head for head in heads if head is not None), key=lambda head: head.arrived_at, default=None
        )
