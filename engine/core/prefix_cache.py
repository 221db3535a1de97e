"""Which full blocks hold which text, under whose namespace, and which of them gives way first. Pure.

A block is known by a hash chained over all text before it and keyed by its tenant's namespace; what decides a
hit is the text itself, token by token, so that no hash, however bad, lends one text's block to another.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from hashlib import blake2b

CLEARLY_MORE = 1.25  # times a quota, or another's share: below that, plain LRU order decides
PROTECTED_TURNOVERS = 4  # so long, in evictions of the whole cache, is an untouched quota protected

HashBlock = Callable[[bytes, bytes, bytes], bytes]
"""(namespace, hash of the block before or b"", the block's tokens as bytes) -> hash."""


def keyed_hash(namespace: bytes, parent_hash: bytes, tokens: bytes) -> bytes:
    """BLAKE2b, keyed with the namespace, tagged with its purpose; the parent's hash is length-framed."""
    key = namespace if len(namespace) <= blake2b.MAX_KEY_SIZE else blake2b(namespace).digest()
    message = len(parent_hash).to_bytes(4, "little") + parent_hash + tokens
    return blake2b(message, digest_size=32, key=key, person=b"sluice kv block").digest()


@dataclass(eq=False, kw_only=True, slots=True)
class BlockText:
    """What a full block holds: its tokens after those of all its parents, and to whom it belongs."""

    block: int  # whose content this is; equal texts of other blocks are recorded as the same
    parent: "BlockText | None"
    namespace: bytes
    block_hash: bytes
    tokens: bytes
    num_evicted_before: int = 0  # how many blocks the cache had evicted when this one was last let go

    def equals(self, parent: "BlockText | None", namespace: bytes, tokens: bytes) -> bool:
        """Whether this is exactly that text; the parents are one object, or compared block by block."""
        if self.tokens != tokens or self.namespace != namespace:
            return False
        ours, theirs = self.parent, parent
        while ours is not theirs:  # only when a parent was evicted and computed again
            if ours is None or theirs is None:
                return False
            if ours.tokens != theirs.tokens or ours.namespace != theirs.namespace:
                return False
            ours, theirs = ours.parent, theirs.parent
        self.parent = parent
        return True


@dataclass(eq=False, slots=True)
class _Share:
    """What one namespace has of the cache."""

    num_blocks: int = 0  # known, held or not
    unheld: OrderedDict[int, None] = field(default_factory=OrderedDict)  # the longest untouched first


class PrefixCache:
    """Known blocks by hash. Those that no table holds stay until room is needed: least recently used first.

    With a soft quota, an equal part of the cache for every namespace that has known blocks: if the oldest
    block's namespace has clearly less than another that is beyond its quota, the one with the most gives way,
    again its oldest block first. So a flood of new text mostly evicts itself. That protects text which nobody
    touches for long, but not for ever, or the tenants of last week would starve those of today: a namespace
    at its quota for PROTECTED_TURNOVERS, one with a tenth of it ten times as long. An idle share melts away.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_evicted = 0
        self._num_blocks = num_blocks
        self._by_hash: dict[bytes, BlockText] = {}
        self._texts: list[BlockText | None] = [None] * num_blocks
        self._unheld: OrderedDict[int, None] = OrderedDict()  # of all namespaces, the longest untouched first
        self._shares: dict[bytes, _Share] = {}
        self._ranking: list[tuple[int, bytes]] = []  # every share's (num_blocks, namespace), ascending
        self._pending: dict[bytes, object] = {}

    @property
    def num_unheld(self) -> int:
        """Known blocks that no table holds."""
        return len(self._unheld)

    def num_unheld_of(self, namespace: bytes) -> int:
        """Those of one namespace."""
        share = self._shares.get(namespace)
        return 0 if share is None else len(share.unheld)

    def text_of(self, block: int) -> BlockText | None:
        """What was recorded for a block since it was taken."""
        return self._texts[block]

    def has(self, block_hash: bytes) -> bool:
        """Whether some known block has this hash: if not, there is no need to ask for its text."""
        return block_hash in self._by_hash

    def knows(self, text: BlockText) -> bool:
        """Whether what `find` once returned can still be found."""
        return self._texts[text.block] is text

    def find(
        self, parent: BlockText | None, namespace: bytes, tokens: bytes, block_hash: bytes
    ) -> BlockText | None:
        """The known block with exactly this text, if there is one."""
        known = self._by_hash.get(block_hash)
        return known if known is not None and known.equals(parent, namespace, tokens) else None

    def record(
        self, block: int, parent: BlockText | None, namespace: bytes, tokens: bytes, block_hash: bytes
    ) -> BlockText:
        """Notes what a held block holds. Now it is known, unless a twin or an equal hash came first."""
        self._pending.pop(block_hash, None)
        known = self._by_hash.get(block_hash)
        if known is not None and known.equals(parent, namespace, tokens):
            self._texts[block] = known
            return known
        text = BlockText(
            block=block, parent=parent, namespace=namespace, block_hash=block_hash, tokens=tokens
        )
        self._texts[block] = text
        if known is None:
            self._by_hash[block_hash] = text
            self._resize(namespace, 1)
        return text

    # --- held and not ----------------------------------------------------------------------------------

    def hold(self, block: int) -> None:
        """A table takes up a known block that none held."""
        text = self._texts[block]
        assert text is not None, f"block {block} holds no text"
        del self._unheld[block]
        del self._shares[text.namespace].unheld[block]

    def let_go(self, block: int) -> bool:
        """No table holds `block` any more. Says whether it stays because it is known."""
        text = self._texts[block]
        if text is None or self._by_hash.get(text.block_hash) is not text or text.block != block:
            self._texts[block] = None
            return False
        text.num_evicted_before = self.num_evicted
        self._unheld[block] = None
        self._shares[text.namespace].unheld[block] = None
        return True

    def evict(self) -> int:
        """Forgets one of the known blocks that no table holds, and returns it. There must be one."""
        text = self._giving_way()
        self.hold(text.block)
        self._texts[text.block] = None
        del self._by_hash[text.block_hash]
        self._resize(text.namespace, -1)
        self.num_evicted += 1
        return text.block

    def _giving_way(self) -> BlockText:
        oldest = self._first(self._unheld)
        quota = self._num_blocks / len(self._shares)
        share = self._shares[oldest.namespace].num_blocks
        age = self.num_evicted - oldest.num_evicted_before
        if age * share > PROTECTED_TURNOVERS * self._num_blocks * quota:
            return oldest
        for num_blocks, namespace in reversed(self._ranking):
            if num_blocks <= CLEARLY_MORE * max(quota, share):
                break
            if self._shares[namespace].unheld:  # else its sequences are using all that it has
                return self._first(self._shares[namespace].unheld)
        return oldest

    def _first(self, blocks: OrderedDict[int, None]) -> BlockText:
        text = self._texts[next(iter(blocks))]
        assert text is not None
        return text

    def _resize(self, namespace: bytes, change: int) -> None:
        share = self._shares.setdefault(namespace, _Share())
        if share.num_blocks > 0:
            del self._ranking[bisect_left(self._ranking, (share.num_blocks, namespace))]
        share.num_blocks += change
        if share.num_blocks > 0:
            insort(self._ranking, (share.num_blocks, namespace))
        else:
            del self._shares[namespace]

    # --- being computed right now ----------------------------------------------------------------------

    def expect(self, computing: object, block_hashes: Iterable[bytes]) -> None:
        """Notes that `computing` will have these blocks soon; whoever came first keeps the mark."""
        for block_hash in block_hashes:
            self._pending.setdefault(block_hash, computing)

    def expect_no_more(self, computing: object, block_hashes: Iterable[bytes]) -> None:
        """Drops its marks among these."""
        for block_hash in block_hashes:
            if self._pending.get(block_hash) is computing:
                del self._pending[block_hash]

    def expected_from(self, block_hash: bytes) -> object | None:
        """Who computes this block, if anybody does."""
        return self._pending.get(block_hash)

    # --- for tests and idle moments --------------------------------------------------------------------

    def unheld(self) -> Iterator[int]:
        """Known blocks that no table holds, the longest untouched first."""
        return iter(self._unheld)

    def pending(self) -> Iterator[tuple[bytes, object]]:
        """Every block hash that is being computed, and by whom."""
        return iter(self._pending.items())

    def is_known(self, block: int) -> bool:
        """Whether others can find this very block by its text."""
        text = self._texts[block]
        return text is not None and text.block == block and self._by_hash.get(text.block_hash) is text

    def check_integrity(self, held: Set[int]) -> None:
        """Raises AssertionError unless index, order and shares agree, where `held` are the held blocks."""
        known = {block for block in range(self._num_blocks) if self.is_known(block)}
        assert len(known) == len(self._by_hash), "a hash leads to a block that holds another text"
        assert set(self._unheld) == known - held, "the LRU order is not of the known blocks that nobody holds"
        recorded = {block for block, text in enumerate(self._texts) if text is not None}
        assert recorded <= known | held, "a text is recorded for an empty block"
        shares: dict[bytes, set[int]] = {}
        for text in self._by_hash.values():
            shares.setdefault(text.namespace, set()).add(text.block)
        assert {name: len(blocks) for name, blocks in shares.items()} == {
            name: share.num_blocks for name, share in self._shares.items()
        }, "shares are miscounted"
        for name, share in self._shares.items():
            assert set(share.unheld) == shares[name] - held, "a namespace's order is not of its blocks"
        assert self._ranking == sorted((len(blocks), name) for name, blocks in shares.items()), "misranked"
