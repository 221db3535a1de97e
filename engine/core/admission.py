"""May a request be taken at all? Asked once, when it is submitted; pure."""

from dataclasses import replace

from engine.core.kv_cache import KvCache
from engine.core.limits import LimitError, Limits
from engine.core.outcome import Refusal, RefusalReason
from engine.core.sequence import Sequence


def usable_blocks(kv_cache: KvCache, limits: Limits) -> int:
    """Blocks that admission may fill; growth of what runs may use the rest."""
    return int(kv_cache.num_blocks * limits.kv_cache_utilization_limit)


def offline_blocks(kv_cache: KvCache, limits: Limits) -> int:
    """Blocks that all offline work together may hold."""
    share = min(limits.kv_cache_utilization_limit, limits.offline_kv_utilization_limit)
    return int(kv_cache.num_blocks * share)


def within_cache(limits: Limits, kv_cache: KvCache) -> Limits:
    """`limits` with no more `max_model_len` than one sequence may fill of the cache.

    What is published is then what can be had: no request within it is refused for want of blocks.
    Raises LimitError when admission may fill no block at all.
    """
    longest = usable_blocks(kv_cache, limits) * kv_cache.block_size
    if longest == 0:
        raise LimitError(
            f"of {kv_cache.num_blocks} cache blocks, kv_cache_utilization_limit "
            f"({limits.kv_cache_utilization_limit}) leaves none to use"
        )
    return replace(limits, max_model_len=min(limits.max_model_len, longest))


def refusal(sequence: Sequence, *, limits: Limits, kv_cache: KvCache, vocab_size: int) -> Refusal | None:
    """Why `sequence` can never run under these limits, or None when it can."""
    prompt, output = sequence.num_prompt_tokens, sequence.params.max_tokens
    if prompt == 0:
        return Refusal(RefusalReason.INVALID_REQUEST, "the prompt is empty")
    if output < 1:
        return Refusal(RefusalReason.INVALID_REQUEST, f"max_tokens must be at least 1, not {output}")
    if not 0 <= min(sequence.token_ids) <= max(sequence.token_ids) < vocab_size:
        return Refusal(RefusalReason.INVALID_REQUEST, f"prompt token ids must lie in 0 .. {vocab_size - 1}")
    if output > limits.max_output_len:
        return Refusal(
            RefusalReason.OUTPUT_TOO_LONG,
            f"{output} output tokens are asked for; this engine gives at most {limits.max_output_len}",
        )
    if prompt + output > limits.max_model_len:
        return Refusal(
            RefusalReason.CONTEXT_TOO_LONG,
            f"{prompt} prompt tokens and {output} output tokens are more than the context of "
            f"{limits.max_model_len} tokens",
        )
    needed = kv_cache.blocks_for(prompt + output)
    usable = (usable_blocks if sequence.is_interactive else offline_blocks)(kv_cache, limits)
    if needed > usable:
        return Refusal(
            RefusalReason.KV_NEVER_FITS,
            f"{prompt} prompt tokens and {output} output tokens need {needed} cache blocks; "
            f"one request may have {usable}",
        )
    return None
