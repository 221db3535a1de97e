"""Which sequence has which cache blocks: block tables over the pool."""

from collections.abc import Iterable

from engine.core.block_pool import BlockPool
from engine.core.sequence import Sequence


class KvCache:
    """Grows and releases block tables: position p of a sequence lies in `block_table[p // block_size]`."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)

    @property
    def num_blocks(self) -> int:
        """All blocks of the cache."""
        return self._pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks held by sequences."""
        return self._pool.num_used

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be taken at once."""
        return self._pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def missing_blocks(self, sequence: Sequence) -> int:
        """Blocks still to be taken before all known tokens of `sequence` have a slot."""
        return max(0, self.blocks_for(sequence.num_tokens) - len(sequence.block_table))

    def grow(self, sequence: Sequence) -> bool:
        """Gives every known token of `sequence` a slot; takes nothing and says False if that does not fit."""
        missing = self.missing_blocks(sequence)
        if missing > self._pool.num_free:
            return False
        sequence.block_table.extend(self._pool.allocate(missing))
        return True

    def release(self, sequence: Sequence) -> None:
        """Takes all blocks from `sequence`; what they held has to be computed again."""
        self._pool.release(sequence.block_table)
        sequence.block_table.clear()
        sequence.num_computed_tokens = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError unless the pool's counts are exactly what `sequences` hold."""
        self._pool.check_integrity(sequence.block_table for sequence in sequences)
