"""What one step computes, as data: the scheduler writes a plan, a runner answers with a result.

A plan is self-contained and frozen, so that another thread, process or host could run it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a row's next token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    banned_token_ids: tuple[int, ...] = ()
    """Never sampled in this step (the end-of-sequence ids while `min_tokens` is not reached)."""


class PlannedRow(NamedTuple):
    """One sequence's part of a step: compute `token_ids`, which stand at positions `start`, `start` + 1, ...

    Keys and values go to the slots that `block_table` gives those positions: position p lies in block
    `block_table[p // block_size]` at offset `p % block_size`. Attention sees positions 0 .. own position.
    `sampling` is None while more of the prompt follows, so no token is sampled.
    A named tuple because a step makes hundreds of them.
    """

    sequence_id: str
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    sampling: SamplingParams | None


def prefill_pairs(start: int, num_tokens: int) -> int:
    """Of a token in a chunk and one that it attends to, when `start` tokens stand before the chunk.

    A token attends to all of those, to itself, and to the chunk's tokens before it.
    """
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Rows of one step: decode rows (one token each) first, then prefill chunks."""

    step_id: int
    rows: tuple[PlannedRow, ...]
    token_budget: int = 0
    """The most tokens that this step might have had."""

    num_decode_rows: int = 0
    """The leading rows that decode."""

    num_prefill_tokens: int = 0
    """The tokens of all other rows."""

    num_recomputed_tokens: int = 0
    """Of its tokens, those that had been computed before a preemption."""

    num_context_tokens: int = 0
    """Tokens already in the cache that the attention of decode rows reads, summed over them."""

    num_prefill_pairs: int = 0
    """Of a token in a chunk and one that it attends to, summed over chunks."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step, over all rows."""
        return sum(len(row.token_ids) for row in self.rows)

    def without(self, sequence_ids: set[str]) -> "StepPlan":
        """The same step for all other sequences."""
        rows = tuple(row for row in self.rows if row.sequence_id not in sequence_ids)
        decodes = self.rows[: self.num_decode_rows]
        num_decode_rows = sum(row.sequence_id not in sequence_ids for row in decodes)
        chunks = rows[num_decode_rows:]
        return replace(
            self,
            rows=rows,
            num_decode_rows=num_decode_rows,
            num_prefill_tokens=sum(len(row.token_ids) for row in chunks),
            num_context_tokens=sum(row.start for row in rows[:num_decode_rows]),
            num_prefill_pairs=sum(prefill_pairs(row.start, len(row.token_ids)) for row in chunks),
        )


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step brought: per sequence the tokens sampled (0..k, so that speculation fits).

    `errors` holds sequences whose own part failed (a NaN row, say), with a sentence; others are unaffected.
    """

    step_id: int
    sampled: Mapping[str, tuple[int, ...]]
    errors: Mapping[str, str] = field(default_factory=dict)
