"""What an engine publishes as its context is what its cache can hold."""

import pytest

from engine.core import admission
from engine.core.kv_cache import KvCache
from engine.core.limits import LimitError, Limits
from tests.builders.sequences import sequence

KV_CACHE = KvCache(num_blocks=10, block_size=4)


def test_a_context_longer_than_the_cache_is_lowered_to_what_one_request_may_fill() -> None:
    limits = Limits(max_model_len=8192, kv_cache_utilization_limit=0.85)
    assert admission.within_cache(limits, KV_CACHE).max_model_len == 8 * 4


def test_a_context_that_fits_the_cache_stays() -> None:
    limits = Limits(max_model_len=31)
    assert admission.within_cache(limits, KV_CACHE) == limits


def test_a_request_of_the_whole_published_context_is_taken() -> None:
    limits = admission.within_cache(Limits(max_model_len=8192), KV_CACHE)
    whole = sequence("a", num_prompt_tokens=2, max_tokens=limits.max_model_len - 2)
    assert admission.refusal(whole, limits=limits, kv_cache=KV_CACHE, vocab_size=100) is None


def test_a_cache_of_which_nothing_may_be_used_is_an_error() -> None:
    with pytest.raises(LimitError, match="leaves none"):
        admission.within_cache(Limits(), KvCache(num_blocks=1, block_size=4))
