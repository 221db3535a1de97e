"""How much a scenario does: as the targets ask, or so little that it only shows that everything works."""

from dataclasses import dataclass
from typing import TypeVar

Size = TypeVar("Size", int, float)


@dataclass(frozen=True, kw_only=True)
class Options:
    """`num_runs` of each speed figure, of which medians count."""

    is_smoke: bool
    num_runs: int

    def size(self, full: Size, *, smoke: Size) -> Size:
        """One of the two."""
        return smoke if self.is_smoke else full
