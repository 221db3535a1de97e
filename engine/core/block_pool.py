"""The cache's blocks as numbers: which are free, and how many tables hold each of the others."""

from collections import deque
from collections.abc import Iterable


class BlockPool:
    """Blocks 0 .. num_blocks - 1 with reference counts. Knows nothing of sequences or tensors."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: deque[int] = deque(range(num_blocks))
        self._num_references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that at least one table holds."""
        return self.num_blocks - len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Takes `num_blocks` free blocks, each with one reference. The caller has checked `num_free`."""
        assert num_blocks <= len(self._free), f"{num_blocks} blocks wanted, {len(self._free)} free"
        taken = [self._free.popleft() for _ in range(num_blocks)]
        for block in taken:
            self._num_references[block] = 1
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each block, which must be held already."""
        for block in blocks:
            assert self._num_references[block] > 0, f"block {block} is free"
            self._num_references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops a reference from each block; one without references is free again."""
        for block in blocks:
            assert self._num_references[block] > 0, f"block {block} is freed twice"
            self._num_references[block] -= 1
            if self._num_references[block] == 0:
                self._free.append(block)

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Raises AssertionError unless the counts are what `tables` hold. For tests and idle moments."""
        held = [0] * self.num_blocks
        for table in tables:
            for block in table:
                held[block] += 1
        assert held == self._num_references, "reference counts differ from the tables"
        assert sorted(self._free) == [block for block, count in enumerate(held) if count == 0], (
            f"{len(self._free)} blocks are listed as free, {held.count(0)} are held by nobody"
        )
