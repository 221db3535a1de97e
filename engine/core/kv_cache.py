"""Which sequence has which cache blocks: block tables over the pool, and over what the prefix cache knows.

A block belongs to the shared namespace of its sequence if it lies wholly within the shared head of the
prompt, else to its tenant's; where that is empty, nothing is looked up or recorded.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import takewhile
from struct import Struct

from engine.core.block_pool import BlockPool
from engine.core.prefix_cache import BlockText, HashBlock, PrefixCache, keyed_hash
from engine.core.sequence import Sequence, SequenceClass

MAX_REMEMBERED = 256  # waiting sequences whose hits are kept from one look to the next


class KvCache:
    """Grows and releases block tables: position p of a sequence lies in `block_table[p // block_size]`.

    Every block is used (at least one table holds it), cached (none does, but its text is known) or empty;
    the latter two are free. Only full blocks are shared, and a full block is never written again.
    """

    def __init__(self, *, num_blocks: int, block_size: int, hash_block: HashBlock = keyed_hash) -> None:
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._prefixes = PrefixCache(num_blocks)
        self._hash_block = hash_block
        self._num_entries = dict.fromkeys(SequenceClass, 0)  # entries of block tables
        self._last_hits: dict[Sequence, tuple[int, list[BlockText]]] = {}
        self._pack_tokens = Struct(f"<{block_size}I").pack  # ids are less than 2**32

    # --- how much of it ----------------------------------------------------------------------------------

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
        """Blocks that can be taken at once: empty ones, and cached ones that give way."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that no sequence holds, with text that one could take up again."""
        return self._prefixes.num_unheld

    @property
    def num_evicted_blocks(self) -> int:
        """Cached blocks that gave way since the start."""
        return self._prefixes.num_evicted

    def num_blocks_of(self, sequence_class: SequenceClass) -> int:
        """Blocks that sequences of a class hold; one that several share counts for each of them."""
        return self._num_entries[sequence_class]

    def num_cached_blocks_of(self, namespace: bytes) -> int:
        """Cached blocks that belong to `namespace`."""
        return self._prefixes.num_unheld_of(namespace)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def missing_blocks(self, sequence: Sequence) -> int:
        """Blocks still to be taken before all known tokens of `sequence` have a slot."""
        return max(0, self.blocks_for(sequence.num_tokens) - len(sequence.block_table))

    # --- what admission would bring ----------------------------------------------------------------------

    def num_cached_tokens(self, sequence: Sequence) -> int:
        """Tokens of `sequence`, after those that its table holds, that it would not have to compute."""
        return len(self._hits(sequence)) * self.block_size

    def num_blocks_to_admit(self, sequence: Sequence) -> int:
        """How many free blocks there would be less. What other sequences hold already costs nothing."""
        num_held = sum(self._pool.is_held(text.block) for text in self._hits(sequence))
        return self.missing_blocks(sequence) - num_held

    def awaited(self, sequence: Sequence) -> Sequence | None:
        """Who is computing the next block of `sequence`, which will then be a hit."""
        num_held = len(sequence.block_table)
        index = num_held + len(self._hits(sequence))
        lacks_earlier_ones = sequence.num_computed_tokens < num_held * self.block_size
        if lacks_earlier_ones or index >= self._num_sharable_blocks(sequence):
            return None
        computing = self._prefixes.expected_from(sequence.block_hashes[index])
        assert computing is None or isinstance(computing, Sequence)
        return computing

    # --- verbs -------------------------------------------------------------------------------------------

    def admit(self, sequence: Sequence) -> bool:
        """Gives every known token of `sequence` a slot, from the cache as far as its text is known.

        Sets `num_computed_tokens` to what is there. Takes nothing and says False if it does not fit.
        """
        if self.num_blocks_to_admit(sequence) > self._pool.num_free:
            return False
        hits = self._hits(sequence)
        for text in hits:
            if not self._pool.is_held(text.block):
                self._prefixes.hold(text.block)
            self._pool.retain(text.block)
            sequence.block_table.append(text.block)
        self._num_entries[sequence.sequence_class] += len(hits)
        sequence.num_computed_tokens += len(hits) * self.block_size
        self._take(sequence, self.missing_blocks(sequence))
        self._extend_hashes(sequence)
        self._prefixes.expect(sequence, self._uncomputed_hashes(sequence))
        return True

    def has_room(self, sequence: Sequence) -> bool:
        """Whether every known token of `sequence` has a slot already."""
        return len(sequence.token_ids) <= len(sequence.block_table) * self.block_size

    def grow(self, sequence: Sequence) -> bool:
        """Gives every known token of `sequence` a slot; takes nothing and says False if that does not fit."""
        missing = -(-len(sequence.token_ids) // self.block_size) - len(sequence.block_table)
        if missing <= 0:
            return True
        if missing > self._pool.num_free:
            return False
        self._take(sequence, missing)
        return True

    def commit(self, sequence: Sequence) -> None:
        """Lets others find the blocks that became full of computed tokens. To be called after each step."""
        num_full = sequence.num_computed_tokens // self.block_size
        if num_full and self._prefixes.text_of(sequence.block_table[num_full - 1]) is None:
            num_named = self._num_named_blocks(sequence, num_full)
            if num_named and self._prefixes.text_of(sequence.block_table[num_named - 1]) is None:
                self._record(sequence, num_named)

    def release(self, sequence: Sequence) -> None:
        """Takes all blocks from `sequence`; what is full of computed tokens stays cached for others."""
        self.release_tail(sequence, len(sequence.block_table))

    def release_tail(self, sequence: Sequence, num_blocks: int) -> int:
        """Takes at most `num_blocks` of its last blocks from a `sequence` that pauses. How many came free."""
        self.commit(sequence)
        self._last_hits.pop(sequence, None)
        self._prefixes.expect_no_more(sequence, self._uncomputed_hashes(sequence))
        table, num_used_before = sequence.block_table, self._pool.num_used
        num_blocks = min(num_blocks, len(table))
        self._num_entries[sequence.sequence_class] -= num_blocks
        for _ in range(num_blocks):  # the last first: it is to be the longest untouched
            block = table.pop()
            if self._pool.release(block) and not self._prefixes.let_go(block):
                self._pool.put_back(block)
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, len(table) * self.block_size)
        return num_used_before - self._pool.num_used

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError unless every count, mark and share is exactly what `sequences` hold."""
        holders = [sequence for sequence in sequences if sequence.block_table]
        self._pool.check_integrity((holder.block_table for holder in holders), self._prefixes.unheld())
        num_entries = dict.fromkeys(SequenceClass, 0)
        for holder in holders:
            num_entries[holder.sequence_class] += len(holder.block_table)
        assert num_entries == self._num_entries, "the counts of what each class holds are wrong"
        written: list[int] = []
        for holder in holders:
            num_full = holder.num_computed_tokens // self.block_size
            assert self.blocks_for(holder.num_computed_tokens) <= len(holder.block_table), "computed nowhere"
            written.extend(holder.block_table[num_full:])
        num_owners = Counter(block for holder in holders for block in holder.block_table)
        self._prefixes.check_integrity(num_owners.keys())
        for block in written:
            assert not self._prefixes.is_known(block), f"block {block} is known before it is full"
            assert num_owners[block] == 1, f"block {block} is written and has several owners"
        expected = {
            (block_hash, id(each)) for each in holders for block_hash in self._uncomputed_hashes(each)
        }
        pending = {(block_hash, id(computing)) for block_hash, computing in self._prefixes.pending()}
        assert pending <= expected, "a block is waited for that nobody computes"

    # --- blocks ------------------------------------------------------------------------------------------

    def _take(self, sequence: Sequence, num_blocks: int) -> None:
        self._num_entries[sequence.sequence_class] += num_blocks
        for _ in range(num_blocks):
            if self._pool.num_empty == 0:
                self._pool.put_back(self._prefixes.evict())
            sequence.block_table.append(self._pool.take())

    # --- text --------------------------------------------------------------------------------------------

    def _hits(self, sequence: Sequence) -> list[BlockText]:
        """The known blocks that go on from what the table of `sequence` holds. Not to be changed."""
        start, stop = len(sequence.block_table), self._num_sharable_blocks(sequence)
        if start >= stop:
            return []
        last_start, last_hits = self._last_hits.get(sequence, (start, []))
        hits = list(takewhile(self._prefixes.knows, last_hits)) if last_start == start else []
        text = hits[-1] if hits else self._last_text(sequence, start)
        self._extend_hashes(sequence)
        if start > 0 and text is None:  # its last block is not full yet: nothing can go on from there
            return hits
        for index in range(start + len(hits), stop):
            block_hash = sequence.block_hashes[index]
            if not self._prefixes.has(block_hash):
                break
            text = self._prefixes.find(text, *self._content(sequence, index), block_hash)
            if text is None:
                break
            hits.append(text)
        if len(self._last_hits) >= MAX_REMEMBERED:
            self._last_hits.clear()
        self._last_hits[sequence] = start, hits
        return hits

    def _record(self, sequence: Sequence, num_blocks: int) -> None:
        """Records the text of its first `num_blocks`, as far as that has not been done."""
        table, start = sequence.block_table, num_blocks
        while start > 0 and self._prefixes.text_of(table[start - 1]) is None:
            start -= 1
        self._extend_hashes(sequence)
        text = self._last_text(sequence, start)
        for index in range(start, num_blocks):
            content, block_hash = self._content(sequence, index), sequence.block_hashes[index]
            text = self._prefixes.record(table[index], text, *content, block_hash)

    def _extend_hashes(self, sequence: Sequence) -> None:
        """Hashes all its full blocks that have a namespace, each once: known tokens never change."""
        hashes = sequence.block_hashes
        num_named = self._num_named_blocks(sequence, sequence.num_tokens // self.block_size)
        for index in range(len(hashes), num_named):
            namespace, tokens = self._content(sequence, index)
            hashes.append(self._hash_block(namespace, hashes[-1] if hashes else b"", tokens))

    def _content(self, sequence: Sequence, index: int) -> tuple[bytes, bytes]:
        """Namespace and tokens of a full block."""
        is_shared = sequence.shared_namespace and index < self._num_shared_blocks(sequence)
        start = index * self.block_size
        tokens = self._pack_tokens(*sequence.token_ids[start : start + self.block_size])
        return sequence.shared_namespace if is_shared else sequence.cache_namespace, tokens

    def _last_text(self, sequence: Sequence, num_blocks: int) -> BlockText | None:
        """What was recorded for the last of its first `num_blocks`."""
        return self._prefixes.text_of(sequence.block_table[num_blocks - 1]) if num_blocks > 0 else None

    def _uncomputed_hashes(self, sequence: Sequence) -> list[bytes]:
        return sequence.block_hashes[sequence.num_computed_tokens // self.block_size :]

    def _num_shared_blocks(self, sequence: Sequence) -> int:
        """Leading blocks of the shared namespace. Output is never shared with other tenants."""
        if not sequence.shared_namespace:
            return 0
        return min(sequence.num_shared_tokens, sequence.num_prompt_tokens) // self.block_size

    def _num_named_blocks(self, sequence: Sequence, num_blocks: int) -> int:
        """How many of its first `num_blocks` have a namespace."""
        return num_blocks if sequence.cache_namespace else min(num_blocks, self._num_shared_blocks(sequence))

    def _num_sharable_blocks(self, sequence: Sequence) -> int:
        """Leading blocks that could be hits: one token is left to compute, for the next to be sampled."""
        return self._num_named_blocks(sequence, (sequence.num_tokens - 1) // self.block_size)
