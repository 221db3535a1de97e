"""Block tables: what is taken, found, kept and given back, and that every count stays true."""

import pytest

from engine.core.kv_cache import KvCache
from engine.core.sequence import Sequence
from tests.builders.sequences import sequence

TENANT = b"tenant's key"
BLOCK_SIZE = 4


def cache(num_blocks: int = 16) -> KvCache:
    return KvCache(num_blocks=num_blocks, block_size=BLOCK_SIZE)


def asking(id: str, num_tokens: int, namespace: bytes = TENANT, *, first_token: int = 1) -> Sequence:
    """A sequence whose prompt is first_token, 2, 3, ..."""
    new = sequence(id, num_prompt_tokens=num_tokens)
    new.token_ids[0] = first_token
    new.cache_namespace = namespace
    return new


def compute(kv_cache: KvCache, sequence: Sequence, num_tokens: int | None = None) -> None:
    """A step that computes `num_tokens` of its tokens, or all that are left."""
    sequence.num_computed_tokens += sequence.num_uncomputed_tokens if num_tokens is None else num_tokens
    kv_cache.commit(sequence)


def run(kv_cache: KvCache, sequence: Sequence) -> int:
    """The sequence's whole life; how many of its tokens the cache had."""
    assert kv_cache.admit(sequence)
    num_cached = sequence.num_computed_tokens
    compute(kv_cache, sequence)
    kv_cache.release(sequence)
    return num_cached


def test_every_block_is_used_cached_or_empty() -> None:
    kv_cache = cache(num_blocks=8)
    first, second = asking("first", 10), asking("second", 5, first_token=9)
    assert kv_cache.admit(first)
    assert kv_cache.admit(second)
    compute(kv_cache, first)
    kv_cache.release(first)
    kv_cache.check_integrity([second])
    assert (kv_cache.num_used_blocks, kv_cache.num_cached_blocks, kv_cache.num_free_blocks) == (2, 2, 6)


def test_a_prompt_asked_again_is_found_up_to_its_last_full_block() -> None:
    kv_cache = cache()
    run(kv_cache, asking("first", 11))
    again = asking("again", 11)
    assert kv_cache.num_cached_tokens(again) == 8
    assert run(kv_cache, again) == 8


def test_one_token_is_left_to_compute_when_all_blocks_are_known() -> None:
    kv_cache = cache()
    run(kv_cache, asking("first", 8))
    assert run(kv_cache, asking("again", 8)) == 4


def test_a_longer_prompt_goes_on_from_a_known_one() -> None:
    kv_cache = cache()
    run(kv_cache, asking("first", 8))
    assert run(kv_cache, asking("longer", 30)) == 8


def test_text_that_differs_in_its_first_token_shares_nothing_after_it() -> None:
    kv_cache = cache()
    run(kv_cache, asking("first", 12))
    assert run(kv_cache, asking("other", 12, first_token=9)) == 0


def test_an_answer_is_found_as_part_of_the_next_prompt() -> None:
    kv_cache = cache()
    first = asking("first", 6)
    assert kv_cache.admit(first)
    for token_id in range(20, 27):
        compute(kv_cache, first)
        first.token_ids.append(token_id)
        assert kv_cache.grow(first)
    kv_cache.release(first)
    following = asking("following", 20)
    following.token_ids[:13] = first.token_ids
    assert kv_cache.num_cached_tokens(following) == 12


def test_blocks_of_a_running_sequence_are_found_before_it_ends() -> None:
    kv_cache = cache()
    running, same = asking("running", 13), asking("same", 13)
    assert kv_cache.admit(running)
    compute(kv_cache, running, 9)
    assert kv_cache.num_cached_tokens(same) == 8
    assert kv_cache.admit(same)
    assert same.block_table[:2] == running.block_table[:2]
    kv_cache.check_integrity([running, same])


def test_what_was_not_computed_is_not_found() -> None:
    kv_cache = cache()
    assert kv_cache.admit(asking("planned", 13))
    assert kv_cache.num_cached_tokens(asking("same", 13)) == 0


def test_looking_does_not_change_who_gives_way() -> None:
    kv_cache = cache(num_blocks=4)
    run(kv_cache, asking("old", 5))
    run(kv_cache, asking("new", 5, first_token=9))
    kv_cache.num_cached_tokens(asking("old again", 5))
    kv_cache.admit(asking("large", 12, first_token=7))
    assert kv_cache.num_cached_tokens(asking("old again", 5)) == 0
    assert kv_cache.num_cached_tokens(asking("new again", 5, first_token=9)) == 4


def test_a_look_repeated_after_eviction_tells_the_truth() -> None:
    kv_cache = cache(num_blocks=4)
    run(kv_cache, asking("first", 13))
    waiting = asking("waiting", 13)
    assert kv_cache.num_cached_tokens(waiting) == 12
    kv_cache.admit(asking("large", 12, first_token=7))
    assert kv_cache.num_cached_tokens(waiting) == 4


def test_blocks_that_others_hold_cost_nothing_at_admission_and_cached_ones_do() -> None:
    kv_cache = cache()
    running, same, cached = asking("running", 13), asking("same", 13), asking("cached", 13, first_token=9)
    assert kv_cache.admit(running)
    compute(kv_cache, running)
    run(kv_cache, cached)
    assert kv_cache.num_blocks_to_admit(same) == 1
    assert kv_cache.num_blocks_to_admit(asking("again", 13, first_token=9)) == 4


def test_admission_takes_nothing_if_it_does_not_fit() -> None:
    kv_cache = cache(num_blocks=4)
    first, second = asking("first", 9), asking("second", 17)
    run(kv_cache, first)
    assert not kv_cache.admit(second)
    assert (second.block_table, second.num_computed_tokens) == ([], 0)
    assert (kv_cache.num_used_blocks, kv_cache.num_cached_blocks) == (0, 2)
    assert not kv_cache.awaited(asking("third", 17))


def test_admission_never_evicts_the_blocks_that_it_finds() -> None:
    kv_cache = cache(num_blocks=4)
    run(kv_cache, asking("first", 13))
    again = asking("again", 16)
    assert kv_cache.admit(again)
    assert again.num_computed_tokens == 12
    kv_cache.check_integrity([again])


def test_tails_give_way_before_the_heads_that_lead_to_them() -> None:
    kv_cache = cache(num_blocks=4)
    run(kv_cache, asking("first", 16))
    run(kv_cache, asking("other", 5, first_token=9))
    assert kv_cache.num_cached_tokens(asking("again", 16)) == 8
    assert kv_cache.num_evicted_blocks == 2


def test_a_disconnect_during_a_long_prefill_keeps_what_was_computed() -> None:
    kv_cache = cache()
    aborted = asking("aborted", 40)
    assert kv_cache.admit(aborted)
    compute(kv_cache, aborted, 30)
    kv_cache.release(aborted)
    assert kv_cache.num_cached_tokens(asking("again", 40)) == 28


def test_what_was_computed_but_not_committed_is_kept_at_the_end() -> None:
    kv_cache = cache()
    ended = asking("ended", 13)
    assert kv_cache.admit(ended)
    ended.num_computed_tokens = 13
    kv_cache.release(ended)
    assert kv_cache.num_cached_tokens(asking("again", 13)) == 12


def test_text_computed_twice_at_once_is_cached_once() -> None:
    kv_cache = cache()
    both = [asking("one", 9), asking("two", 9)]
    for each in both:
        assert kv_cache.admit(each)
    for each in both:
        compute(kv_cache, each)
    kv_cache.check_integrity(both)
    for each in both:
        kv_cache.release(each)
    kv_cache.check_integrity([])
    assert kv_cache.num_cached_blocks == 2


def test_a_twin_whose_first_copy_was_evicted_still_makes_its_answer_findable() -> None:
    kv_cache = cache(num_blocks=8)
    one, two = asking("one", 5), asking("two", 8)
    for each in (one, two):
        assert kv_cache.admit(each)
    compute(kv_cache, one)
    compute(kv_cache, two, 5)
    kv_cache.release(one)
    large = asking("large", 24, first_token=7)
    assert kv_cache.admit(large)  # evicts the only known copy of the first block
    compute(kv_cache, two)
    kv_cache.release(large)
    kv_cache.release(two)
    assert run(kv_cache, asking("first block again", 5)) == 0
    assert kv_cache.num_cached_tokens(asking("both blocks", 9)) == 8


# --- pausing and resuming ---------------------------------------------------------------------------------


def test_a_released_tail_loses_only_itself() -> None:
    kv_cache = cache()
    paused = asking("paused", 16)
    assert kv_cache.admit(paused)
    compute(kv_cache, paused, 14)
    assert kv_cache.release_tail(paused, 2) == 2
    assert (len(paused.block_table), paused.num_computed_tokens) == (2, 8)
    kv_cache.check_integrity([paused])


def test_a_released_tail_is_found_again_if_nobody_needed_it() -> None:
    kv_cache = cache()
    paused = asking("paused", 16)
    assert kv_cache.admit(paused)
    compute(kv_cache, paused, 14)
    kv_cache.release_tail(paused, 3)
    assert kv_cache.num_cached_tokens(paused) == 8
    assert kv_cache.admit(paused)
    assert (len(paused.block_table), paused.num_computed_tokens) == (4, 12)


def test_resuming_in_the_middle_of_a_block_takes_no_other_text() -> None:
    kv_cache = cache()
    paused = asking("paused", 16)
    run(kv_cache, asking("known", 16))
    paused.block_hashes.clear()
    assert kv_cache.grow(paused)
    compute(kv_cache, paused, 6)
    kv_cache.release_tail(paused, 1)
    assert kv_cache.num_cached_tokens(paused) == 0
    assert kv_cache.admit(paused)
    assert (len(paused.block_table), paused.num_computed_tokens) == (4, 6)
    kv_cache.check_integrity([paused])


def test_a_tail_that_others_hold_does_not_come_free() -> None:
    kv_cache = cache()
    first, same = asking("first", 13), asking("same", 13)
    assert kv_cache.admit(first)
    compute(kv_cache, first)
    assert kv_cache.admit(same)
    assert kv_cache.release_tail(same, 3) == 1
    kv_cache.check_integrity([first, same])


def test_a_tail_longer_than_the_table_is_the_whole_table() -> None:
    kv_cache = cache()
    paused = asking("paused", 9)
    assert kv_cache.admit(paused)
    assert kv_cache.release_tail(paused, 99) == 3
    assert paused.num_computed_tokens == 0


# --- waiting for another's blocks -------------------------------------------------------------------------


def test_the_second_of_two_equal_prompts_finds_the_first_one_computing() -> None:
    kv_cache = cache()
    first, second = asking("first", 13), asking("second", 13)
    assert kv_cache.admit(first)
    assert kv_cache.awaited(second)
    assert not kv_cache.awaited(first)
    compute(kv_cache, first)
    assert not kv_cache.awaited(second)
    assert kv_cache.num_cached_tokens(second) == 12


def test_waiting_goes_on_while_the_next_block_is_being_computed() -> None:
    kv_cache = cache()
    first, second = asking("first", 13), asking("second", 13)
    assert kv_cache.admit(first)
    compute(kv_cache, first, 4)
    assert kv_cache.awaited(second)
    assert kv_cache.num_cached_tokens(second) == 4


def test_nobody_waits_for_a_sequence_that_was_aborted() -> None:
    kv_cache = cache()
    first, second = asking("first", 13), asking("second", 13)
    assert kv_cache.admit(first)
    kv_cache.release(first)
    assert not kv_cache.awaited(second)


def test_nobody_waits_for_a_sequence_that_pauses() -> None:
    kv_cache = cache()
    first, second = asking("first", 13), asking("second", 13)
    assert kv_cache.admit(first)
    kv_cache.release_tail(first, 1)
    assert not kv_cache.awaited(second)


def test_nobody_waits_for_a_block_that_would_be_no_hit() -> None:
    kv_cache = cache()
    first, second = asking("first", 8), asking("second", 8)
    assert kv_cache.admit(first)
    compute(kv_cache, first, 4)
    assert not kv_cache.awaited(second)  # the second block holds the token it has to compute itself


def test_nobody_waits_for_a_block_behind_one_that_it_has_to_compute_itself() -> None:
    kv_cache = cache()
    paused, other = asking("paused", 16), asking("other", 16)
    assert kv_cache.admit(paused)
    compute(kv_cache, paused, 6)
    kv_cache.release_tail(paused, 2)
    assert kv_cache.admit(other)
    assert not kv_cache.awaited(paused)


def test_nobody_waits_for_another_tenant() -> None:
    kv_cache = cache()
    assert kv_cache.admit(asking("first", 13))
    assert not kv_cache.awaited(asking("second", 13, b"another"))


# --- leaks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["looked at", "admitted", "half computed", "computed", "paused", "grown"])
def test_an_abort_in_any_state_leaves_nothing_behind(state: str) -> None:
    kv_cache = cache()
    aborted = asking("aborted", 13)
    kv_cache.num_cached_tokens(aborted)
    if state != "looked at":
        assert kv_cache.admit(aborted)
    if state in ("half computed", "paused"):
        compute(kv_cache, aborted, 7)
    if state in ("computed", "grown"):
        compute(kv_cache, aborted)
    if state == "grown":
        aborted.token_ids += [8] * 5
        assert kv_cache.grow(aborted)
    if state == "paused":
        kv_cache.release_tail(aborted, 2)
    kv_cache.release(aborted)
    kv_cache.check_integrity([])
    assert kv_cache.num_free_blocks == kv_cache.num_blocks
    assert not kv_cache.awaited(asking("same", 13))


def test_all_members_of_an_aborted_group_give_their_blocks_back() -> None:
    kv_cache = cache()
    members = [asking(f"choice {index}", 13) for index in range(3)]
    assert kv_cache.admit(members[0])
    compute(kv_cache, members[0])
    for member in members[1:]:
        assert kv_cache.admit(member)
    assert kv_cache.num_used_blocks == 3 + 3  # the prompt once, and each one's last block
    for member in members:
        kv_cache.release(member)
    kv_cache.check_integrity([])
    assert kv_cache.num_cached_blocks == 3


def test_released_twice_is_released_once() -> None:
    kv_cache = cache()
    ended = asking("ended", 9)
    assert kv_cache.admit(ended)
    kv_cache.release(ended)
    kv_cache.release(ended)
    kv_cache.check_integrity([])


def test_a_leak_is_noticed() -> None:
    kv_cache = cache()
    assert kv_cache.admit(asking("forgotten", 9))
    with pytest.raises(AssertionError):
        kv_cache.check_integrity([])
