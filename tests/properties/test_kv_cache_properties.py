"""Whatever is admitted, computed, paused and ended, under whatever hash: each reads its own text."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.core.kv_cache import KvCache
from engine.core.prefix_cache import HashBlock, keyed_hash
from engine.core.sequence import Sequence
from tests.builders.sequences import sequence

BLOCK_SIZE = 4
NUM_BLOCKS = 24
GROUP = b"group"
Prefix = tuple[tuple[bytes, ...], tuple[int, ...]]  # namespaces of its blocks, all its tokens


def asking(id: str, namespace: bytes, token_ids: list[int], num_shared_tokens: int = 0) -> Sequence:
    new = sequence(id, num_prompt_tokens=len(token_ids))
    new.token_ids[:] = token_ids
    new.cache_namespace = namespace
    if num_shared_tokens:
        new.shared_namespace, new.num_shared_tokens = GROUP, num_shared_tokens
    return new


def namespace_of(sequence: Sequence, block_index: int) -> bytes:
    is_shared = (block_index + 1) * BLOCK_SIZE <= min(sequence.num_shared_tokens, sequence.num_prompt_tokens)
    return GROUP if is_shared else sequence.cache_namespace


def prefix(sequence: Sequence, num_blocks: int) -> Prefix:
    namespaces = tuple(namespace_of(sequence, index) for index in range(num_blocks))
    return namespaces, tuple(sequence.token_ids[: num_blocks * BLOCK_SIZE])


class CacheMachine(RuleBasedStateMachine):
    """Sequences of several tenants with much text in common, over a cache too small for them."""

    hash_block: HashBlock = staticmethod(keyed_hash)

    def __init__(self) -> None:
        super().__init__()
        self.kv_cache = KvCache(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, hash_block=self.hash_block)
        self.waiting: list[Sequence] = []  # those that paused keep their first blocks
        self.running: list[Sequence] = []
        self.memory: dict[tuple[int, int], tuple[bytes, int]] = {}  # slot -> whose token was written there
        self.computed: set[Prefix] = set()
        self.num_arrived = 0

    @rule(
        namespace=st.sampled_from([b"a", b"b", b"c", b""]),
        stem=st.integers(0, 1),
        num_tokens=st.integers(1, 40),
        odd_token_at=st.one_of(st.none(), st.integers(0, 39)),
        num_shared_tokens=st.sampled_from([0, 0, 6, 8]),
    )
    def arrive(
        self, namespace: bytes, stem: int, num_tokens: int, odd_token_at: int | None, num_shared_tokens: int
    ) -> None:
        token_ids = [1 + stem * index % 3 for index in range(num_tokens)]
        if odd_token_at is not None and odd_token_at < num_tokens:
            token_ids[odd_token_at] = 9
        self.num_arrived += 1
        new = asking(f"s{self.num_arrived}", namespace, token_ids, min(num_shared_tokens, num_tokens))
        self.waiting.append(new)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.waiting))
        kv_cache, num_computed_before = self.kv_cache, chosen.num_computed_tokens
        num_cached, num_free = kv_cache.num_cached_tokens(chosen), kv_cache.num_free_blocks
        needed = kv_cache.num_blocks_to_admit(chosen)
        self.check_hits(chosen, num_cached)
        fits = kv_cache.admit(chosen)
        assert fits == (needed <= num_free), "it was told otherwise before"
        if not fits:
            assert kv_cache.num_free_blocks == num_free, "what did not fit took something"
            return
        assert num_free - kv_cache.num_free_blocks == needed, "admission cost more or less than announced"
        assert chosen.num_computed_tokens == num_computed_before + num_cached
        assert kv_cache.missing_blocks(chosen) == 0
        self.waiting.remove(chosen)
        self.running.append(chosen)

    def check_hits(self, sequence: Sequence, num_cached: int) -> None:
        num_held, num_hits = len(sequence.block_table), num_cached // BLOCK_SIZE
        for num_blocks in range(num_held + 1, num_held + num_hits + 1):
            namespaces, _ = known = prefix(sequence, num_blocks)
            assert b"" not in namespaces, "a hit without a namespace"
            assert known in self.computed, "a hit on a text that nobody computed under these namespaces"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_tokens=st.integers(1, 40))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        chosen = data.draw(st.sampled_from(self.running))
        end = chosen.num_computed_tokens + min(num_tokens, chosen.num_uncomputed_tokens)
        for position in range(chosen.num_computed_tokens, end):
            self.memory[self.slot(chosen, position)] = self.own(chosen, position)
        for position in range(end):
            seen = self.memory[self.slot(chosen, position)]
            assert seen == self.own(chosen, position), f"{chosen.id} reads another's text at {position}"
        chosen.num_computed_tokens = end
        self.kv_cache.commit(chosen)
        self.computed.update(prefix(chosen, count) for count in range(1, end // BLOCK_SIZE + 1))
        if chosen.num_uncomputed_tokens == 0:
            self.take_token(chosen)

    def take_token(self, sequence: Sequence) -> None:
        sequence.token_ids.append(1)
        if not self.kv_cache.grow(sequence):
            self.kv_cache.release(sequence)
            self.running.remove(sequence)
            self.waiting.append(sequence)

    def slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        return sequence.block_table[position // BLOCK_SIZE], position % BLOCK_SIZE

    def own(self, sequence: Sequence, position: int) -> tuple[bytes, int]:
        return namespace_of(sequence, position // BLOCK_SIZE), sequence.token_ids[position]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_blocks=st.integers(1, 12))
    def pause(self, data: st.DataObject, num_blocks: int) -> None:
        chosen = data.draw(st.sampled_from(self.running))
        num_free, num_held = self.kv_cache.num_free_blocks, len(chosen.block_table)
        num_freed = self.kv_cache.release_tail(chosen, num_blocks)
        assert num_freed == self.kv_cache.num_free_blocks - num_free
        assert len(chosen.block_table) == max(0, num_held - num_blocks)
        self.running.remove(chosen)
        self.waiting.append(chosen)

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.waiting + self.running))
        self.kv_cache.release(chosen)
        (self.waiting if chosen in self.waiting else self.running).remove(chosen)

    @invariant()
    def every_count_is_what_the_tables_hold(self) -> None:
        self.kv_cache.check_integrity(self.waiting + self.running)

    @invariant()
    def whoever_is_waited_for_runs(self) -> None:
        assert self.running or not any(map(self.kv_cache.awaited, self.waiting))

    def teardown(self) -> None:
        for each in self.waiting + self.running:
            self.kv_cache.release(each)
        self.kv_cache.check_integrity([])
        assert self.kv_cache.num_free_blocks == NUM_BLOCKS


class StrongHashMachine(CacheMachine):
    """As in earnest: here it is also known exactly what must be found."""

    def check_hits(self, sequence: Sequence, num_cached: int) -> None:
        super().check_hits(sequence, num_cached)
        held_tokens = len(sequence.block_table) * BLOCK_SIZE
        if self.kv_cache.num_evicted_blocks or sequence.num_computed_tokens != held_tokens:
            return
        num_blocks = (held_tokens + num_cached) // BLOCK_SIZE + 1
        is_known = (
            b"" not in prefix(sequence, num_blocks)[0] and prefix(sequence, num_blocks) in self.computed
        )
        assert num_blocks * BLOCK_SIZE >= sequence.num_tokens or not is_known, "known text was not found"


class WeakHashMachine(CacheMachine):
    """With a hash of one bit, which looks at nothing but a block's first token."""

    hash_block = staticmethod(lambda namespace, parent_hash, tokens: bytes([tokens[0] % 2]))


class ConstantHashMachine(CacheMachine):
    """With a hash that tells nothing apart."""

    hash_block = staticmethod(lambda namespace, parent_hash, tokens: b"same")


for machine in (StrongHashMachine, WeakHashMachine, ConstantHashMachine):
    machine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)

TestStrongHash = StrongHashMachine.TestCase
TestWeakHash = WeakHashMachine.TestCase
TestConstantHash = ConstantHashMachine.TestCase


@given(token_ids=st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_whatever_the_prompt_its_tenant_finds_it_again_and_no_other_does(token_ids: list[int]) -> None:
    kv_cache = KvCache(num_blocks=64, block_size=BLOCK_SIZE)
    first = asking("first", b"a", token_ids)
    assert kv_cache.admit(first)
    first.num_computed_tokens = first.num_tokens
    kv_cache.commit(first)
    kv_cache.release(first)
    assert kv_cache.num_cached_tokens(asking("other", b"b", token_ids)) == 0
    expected = (len(token_ids) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert kv_cache.num_cached_tokens(asking("again", b"a", token_ids)) == expected
