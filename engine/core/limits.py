"""The scheduler's limits: one immutable value, swapped whole between two steps."""

from dataclasses import dataclass, fields


class LimitError(ValueError):
    """A limit is out of its range, or two of them contradict each other. The message names the key."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one step, and one request, may take at most. Names are the published ones (`[scheduler]`)."""

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 8192
    max_num_prefill_tokens: int = 4096
    max_model_len: int = 8192
    max_output_len: int = 4096
    prefill_chunk_size: int = 2048
    long_context_threshold: int = 4096  # prompts above it are long
    max_num_long_context_seqs: int = 4
    kv_cache_utilization_limit: float = 0.85
    waiting_timeout_ms: int = 30_000
    offline_kv_utilization_limit: float = 0.5  # the share of the cache that offline work may hold
    offline_min_share: float = 0.05  # of service, when interactive work would take everything

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0 and field.name != "offline_min_share":
                raise LimitError(f"{field.name} must be above zero, not {getattr(self, field.name)}")
        for name in ("kv_cache_utilization_limit", "offline_kv_utilization_limit"):
            if getattr(self, name) > 1:
                raise LimitError(f"{name} is a share of the cache, at most 1, not {getattr(self, name)}")
        if not 0 <= self.offline_min_share < 1:
            raise LimitError(f"offline_min_share must be from 0 to below 1, not {self.offline_min_share}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise LimitError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running sequence decodes one token in every step"
            )
