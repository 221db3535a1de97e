"""The cache's blocks as numbers: which are empty, and how many tables hold each of the others."""

from collections import deque
from collections.abc import Iterable


class BlockPool:
    """Blocks 0 .. num_blocks - 1 with reference counts. Knows nothing of sequences, text or tensors.

    A block that nobody holds is listed as empty, unless whoever released it keeps it for its text.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_used = 0  # held by at least one table
        self._empty: deque[int] = deque(range(num_blocks))
        self._num_references = [0] * num_blocks

    @property
    def num_empty(self) -> int:
        """Blocks that nobody holds or keeps."""
        return len(self._empty)

    @property
    def num_free(self) -> int:
        """Blocks that no table holds, whether empty or kept."""
        return self.num_blocks - self.num_used

    def is_held(self, block: int) -> bool:
        """Whether any table holds `block`."""
        return self._num_references[block] > 0

    def take(self) -> int:
        """An empty block, now with one reference. The caller has checked `num_empty`."""
        block = self._empty.popleft()
        self.retain(block)
        return block

    def retain(self, block: int) -> None:
        """Adds a reference to a block that is held or kept."""
        self.num_used += self._num_references[block] == 0
        self._num_references[block] += 1

    def release(self, block: int) -> bool:
        """Drops a reference. True if it was the last: the caller then keeps the block or puts it back."""
        assert self._num_references[block] > 0, f"block {block} is freed twice"
        self._num_references[block] -= 1
        if self._num_references[block] > 0:
            return False
        self.num_used -= 1
        return True

    def put_back(self, block: int) -> None:
        """Lists a block that nobody holds as empty."""
        assert self._num_references[block] == 0, f"block {block} is held"
        self._empty.append(block)

    def check_integrity(self, tables: Iterable[list[int]], kept: Iterable[int]) -> None:
        """Raises AssertionError unless the counts are what `tables` hold, and all else is empty or `kept`."""
        held = [0] * self.num_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        assert held == self._num_references, "reference counts differ from the tables"
        unheld = [block for block, count in enumerate(held) if count == 0]
        assert self.num_free == len(unheld), f"{self.num_free} blocks count as free, {len(unheld)} are"
        listed = sorted([*self._empty, *kept])
        assert listed == unheld, f"{len(listed)} blocks are empty or kept, {len(unheld)} are held by nobody"
