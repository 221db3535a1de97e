"""Whose text a block holds is beyond doubt, no tenant learns of another's, and none drives out the others."""

from hashlib import blake2b

import pytest

from engine.core.kv_cache import KvCache
from engine.core.prefix_cache import PROTECTED_TURNOVERS, HashBlock, keyed_hash
from engine.core.sequence import Sequence
from tests.builders.sequences import sequence

BLOCK_SIZE = 4


def cache(num_blocks: int = 64, hash_block: HashBlock = keyed_hash) -> KvCache:
    return KvCache(num_blocks=num_blocks, block_size=BLOCK_SIZE, hash_block=hash_block)


def constant_hash(namespace: bytes, parent_hash: bytes, tokens: bytes) -> bytes:
    """The worst hash there is: everything collides."""
    return b"same"


def asking(
    token_ids: list[int], namespace: bytes, *, shared: bytes = b"", num_shared_tokens: int = 0
) -> Sequence:
    new = sequence(num_prompt_tokens=len(token_ids))
    new.token_ids[:] = token_ids
    new.cache_namespace = namespace
    new.shared_namespace, new.num_shared_tokens = shared, num_shared_tokens
    return new


def run(kv_cache: KvCache, sequence: Sequence) -> int:
    """Its whole life; how many of its tokens the cache had."""
    assert kv_cache.admit(sequence)
    num_cached = sequence.num_computed_tokens
    sequence.num_computed_tokens = sequence.num_tokens
    kv_cache.commit(sequence)
    kv_cache.release(sequence)
    return num_cached


def text(start: int, num_tokens: int = 17) -> list[int]:
    return list(range(start, start + num_tokens))


# --- isolation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hash_block", [keyed_hash, constant_hash])
def test_the_same_tenant_hits_and_another_tenant_misses(hash_block: HashBlock) -> None:
    kv_cache = cache(hash_block=hash_block)
    run(kv_cache, asking(text(0), b"tenant a"))
    assert kv_cache.num_cached_tokens(asking(text(0), b"tenant b")) == 0
    assert kv_cache.num_cached_tokens(asking(text(0), b"tenant a")) > 0


def test_two_tenants_with_the_same_text_each_have_their_own_blocks() -> None:
    kv_cache = cache()
    assert run(kv_cache, asking(text(0), b"a")) == 0
    assert run(kv_cache, asking(text(0), b"b")) == 0
    assert (kv_cache.num_cached_blocks_of(b"a"), kv_cache.num_cached_blocks_of(b"b")) == (4, 4)


def test_without_a_namespace_nothing_is_cached() -> None:
    kv_cache = cache()
    assert run(kv_cache, asking(text(0), b"")) == 0
    assert run(kv_cache, asking(text(0), b"")) == 0
    assert kv_cache.num_cached_blocks == 0
    kv_cache.check_integrity([])


@pytest.mark.parametrize(
    ("namespace", "parent_hash", "tokens"),
    [
        (b"org_1", b"2345", b""),
        (b"org_12345", b"", b""),
        (b"org_1", b"", b"2345"),
        (b"org_1", b"23", b"45"),
        (b"org_1\0", b"2345", b""),
    ],
)
def test_parts_that_read_the_same_when_joined_hash_differently(
    namespace: bytes, parent_hash: bytes, tokens: bytes
) -> None:
    others = {
        (b"org_1", b"2345", b""),
        (b"org_12345", b"", b""),
        (b"org_1", b"", b"2345"),
        (b"org", b"", b""),
    }
    ours = (namespace, parent_hash, tokens)
    assert keyed_hash(*ours) not in {keyed_hash(*other) for other in others - {ours}}


def test_a_block_hash_is_no_other_use_of_the_same_key() -> None:
    untagged = blake2b(bytes(4) + b"text", key=b"tenant", digest_size=32)
    assert keyed_hash(b"tenant", b"", b"text") != untagged.digest()


def test_a_namespace_may_be_longer_than_a_key() -> None:
    assert keyed_hash(b"n" * 65, b"", b"text") != keyed_hash(b"n" * 66, b"", b"text")


def test_a_reloaded_model_reuses_nothing_of_the_one_before() -> None:
    run(cache(), asking(text(0), b"a"))
    assert run(cache(), asking(text(0), b"a")) == 0


# --- collisions -------------------------------------------------------------------------------------------


def test_a_collision_never_lends_another_texts_block() -> None:
    kv_cache = cache(hash_block=constant_hash)
    run(kv_cache, asking(text(0), b"a"))
    assert run(kv_cache, asking(text(100), b"a")) == 0
    kv_cache.check_integrity([])


def test_a_collision_with_the_same_tokens_after_another_text_is_no_hit() -> None:
    kv_cache = cache(hash_block=lambda namespace, parent_hash, tokens: tokens)
    run(kv_cache, asking([1, 1, 1, 1, 2, 2, 2, 2, 0], b"a"))
    assert run(kv_cache, asking([3, 3, 3, 3, 2, 2, 2, 2, 0], b"a")) == 0
    assert kv_cache.num_cached_tokens(asking([3, 3, 3, 3, 2, 2, 2, 2, 0], b"a")) == 4


def test_a_block_is_no_continuation_of_itself_though_its_tokens_and_hash_repeat() -> None:
    kv_cache = cache(hash_block=constant_hash)
    run(kv_cache, asking([1] * 9, b"a"))
    assert kv_cache.num_cached_tokens(asking([1] * 9, b"a")) == 4


# --- the shared group -------------------------------------------------------------------------------------


def test_a_public_system_prompt_is_shared_and_what_follows_it_is_not() -> None:
    kv_cache = cache()
    run(kv_cache, asking(text(0), b"a", shared=b"group", num_shared_tokens=8))
    other = asking(text(0), b"b", shared=b"group", num_shared_tokens=8)
    assert run(kv_cache, other) == 8
    assert run(kv_cache, asking(text(0), b"a", shared=b"group", num_shared_tokens=8)) == 16


def test_a_block_that_is_shared_only_in_part_belongs_to_its_tenant() -> None:
    kv_cache = cache()
    run(kv_cache, asking(text(0), b"a", shared=b"group", num_shared_tokens=7))
    assert kv_cache.num_cached_blocks_of(b"group") == 1
    assert run(kv_cache, asking(text(0), b"b", shared=b"group", num_shared_tokens=7)) == 4


def test_who_is_not_in_the_group_shares_nothing() -> None:
    kv_cache = cache()
    run(kv_cache, asking(text(0), b"a", shared=b"group", num_shared_tokens=8))
    assert run(kv_cache, asking(text(0), b"b")) == 0
    assert run(kv_cache, asking(text(0), b"c", shared=b"other group", num_shared_tokens=8)) == 0


def test_an_answer_is_never_shared_whatever_the_request_says() -> None:
    kv_cache = cache()
    answered = asking(text(0, 8), b"a", shared=b"group", num_shared_tokens=99)
    answered.token_ids += text(8, 9)
    run(kv_cache, answered)
    assert kv_cache.num_cached_blocks_of(b"group") == 2


def test_a_shared_head_is_cached_though_the_tenant_has_no_namespace() -> None:
    kv_cache = cache()
    run(kv_cache, asking(text(0), b"", shared=b"group", num_shared_tokens=8))
    assert run(kv_cache, asking(text(0), b"", shared=b"group", num_shared_tokens=8)) == 8
    kv_cache.check_integrity([])


def test_text_behind_an_evicted_shared_head_is_found_once_the_head_is_back() -> None:
    kv_cache = cache(num_blocks=5)
    run(kv_cache, asking(text(0, 9), b"a", shared=b"group", num_shared_tokens=4))
    keeper = asking(text(0, 9), b"a", shared=b"group", num_shared_tokens=4)
    run(kv_cache, keeper)
    filler = asking(text(100, 16), b"")  # takes the three empty blocks and one cached: the tail, the oldest
    assert kv_cache.admit(filler)
    kv_cache.release(filler)
    run(kv_cache, asking(text(0, 9), b"a", shared=b"group", num_shared_tokens=4))
    assert run(kv_cache, asking(text(0, 9), b"a", shared=b"group", num_shared_tokens=4)) == 8


# --- who gives way ----------------------------------------------------------------------------------------


def flood(kv_cache: KvCache, num_turnovers: int, first_token: int = 10_000) -> None:
    """One tenant's stream of text that never repeats, so many times as large as the cache."""
    num_tokens = num_turnovers * kv_cache.num_blocks * BLOCK_SIZE
    for start in range(first_token, first_token + num_tokens, 16):
        run(kv_cache, asking(text(start), b"flood"))


def test_one_tenant_alone_has_the_whole_cache_in_lru_order() -> None:
    kv_cache = cache(num_blocks=13)
    for start in (0, 1000, 2000):
        run(kv_cache, asking(text(start), b"a"))
    run(kv_cache, asking(text(0), b"a"))  # now the newest
    run(kv_cache, asking(text(3000), b"a"))
    found = [kv_cache.num_cached_tokens(asking(text(start), b"a")) for start in (0, 1000, 2000, 3000)]
    assert found == [16, 0, 16, 16]


def test_a_stream_of_unique_text_drives_out_none_of_those_within_their_quota() -> None:
    kv_cache = cache(num_blocks=128)
    tenants = [b"tenant %d" % index for index in range(4)]
    for tenant in tenants:
        run(kv_cache, asking(text(0), tenant))
    flood(kv_cache, num_turnovers=10)
    assert [kv_cache.num_cached_tokens(asking(text(0), tenant)) for tenant in tenants] == [16] * 4


def test_many_small_tenants_do_not_void_the_protection_of_a_larger_one() -> None:
    kv_cache = cache(num_blocks=256)
    run(kv_cache, asking(text(0, 161), b"larger"))  # 40 blocks, beyond an equal part of 256 / 42
    for index in range(40):
        run(kv_cache, asking(text(0, 5), b"small %d" % index))
    flood(kv_cache, num_turnovers=1)
    assert kv_cache.num_cached_tokens(asking(text(0, 161), b"larger")) == 160


def test_two_large_tenants_of_about_the_same_size_compete_as_lru_has_it() -> None:
    kv_cache = cache(num_blocks=64)
    run(kv_cache, asking(text(0, 113), b"older"))
    run(kv_cache, asking(text(0, 117), b"newer"))
    for index in range(10):
        run(kv_cache, asking(text(0, 5), b"small %d" % index))
    assert kv_cache.num_evicted_blocks > 0
    assert kv_cache.num_cached_blocks_of(b"older") == 28 - kv_cache.num_evicted_blocks


def test_whose_blocks_are_all_in_use_is_passed_over() -> None:
    kv_cache = cache(num_blocks=64)
    for index in range(4):
        run(kv_cache, asking(text(0, 5), b"small %d" % index))
    run(kv_cache, asking(text(0, 101), b"large"))
    running = asking(text(0, 112), b"running")
    assert kv_cache.admit(running)
    running.num_computed_tokens = 112
    kv_cache.commit(running)
    run(kv_cache, asking(text(100, 41), b"new"))
    assert kv_cache.num_evicted_blocks > 0
    assert kv_cache.num_cached_blocks_of(b"large") == 25 - kv_cache.num_evicted_blocks


def test_an_idle_share_melts_away_tails_first() -> None:
    kv_cache = cache(num_blocks=64)
    run(kv_cache, asking(text(0, 129), b"idle"))  # half of the cache: its whole quota
    flood(kv_cache, num_turnovers=4 * PROTECTED_TURNOVERS)
    assert 0 < kv_cache.num_cached_tokens(asking(text(0, 129), b"idle")) < 64


def test_a_tenant_gets_room_beside_one_that_filled_the_cache() -> None:
    kv_cache = cache(num_blocks=64)
    flood(kv_cache, num_turnovers=1)
    run(kv_cache, asking(text(0, 61), b"newcomer"))
    flood(kv_cache, num_turnovers=1, first_token=90_000)
    assert kv_cache.num_cached_tokens(asking(text(0, 61), b"newcomer")) == 60


def test_a_quota_reserves_nothing_against_sequences_that_run() -> None:
    kv_cache = cache(num_blocks=16)
    run(kv_cache, asking(text(0, 33), b"a"))
    large = asking(text(100, 64), b"b")
    assert kv_cache.admit(large)
    assert kv_cache.num_cached_blocks == 0
