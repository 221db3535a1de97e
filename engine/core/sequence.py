"""One request inside the engine: its tokens, how far they are computed, and where they are cached."""

from dataclasses import dataclass, field
from enum import Enum

from engine.core.lines import Path
from engine.core.step import SamplingParams


class SequenceClass(Enum):
    """Who waits for the answer. Offline work takes what interactive work leaves."""

    INTERACTIVE = "interactive"
    OFFLINE = "offline"


class EndReason(Enum):
    """Why a sequence that ran is over."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class WaitReason(Enum):
    """Why a sequence still waits (the wire's `WaitReason`)."""

    KV_BLOCKS = "kv_blocks"
    MAX_NUM_SEQS = "max_num_seqs"
    TOKEN_BUDGET = "token_budget"  # noqa: S105  # tokens of text
    TENANT_SHARE = "tenant_share"
    LONG_LANE = "long_lane"
    CLASS_HOLD = "class_hold"


@dataclass(frozen=True, kw_only=True)
class GenerationParams:
    """How to continue a prompt, and when to stop. `stop_token_ids` include the model's end-of-sequence ids.

    Before `min_tokens` tokens of output no stop token is sampled.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(eq=False, kw_only=True, slots=True)
class Sequence:
    """A prompt and its continuation. Times are seconds of the loop's monotonic clock.

    There is no prefill state and no decode state: each step moves `num_computed_tokens` towards `num_tokens`,
    and samples when it arrives there.
    """

    id: str
    trace_id: str
    owner: object  # whom the loop's publisher sends the outcomes to; opaque here
    tenant: str
    sequence_class: SequenceClass
    token_ids: list[int]
    num_prompt_tokens: int
    params: GenerationParams
    arrived_at: float
    deadline: float
    num_paid_tokens: int | None = None  # of output; the sequence pauses there. None: all of them
    weight: float = 1.0
    within: Path = ()  # who of the tenant asks: its project, and that one's key
    cache_namespace: bytes = b""
    shared_namespace: bytes = b""  # of the first `num_shared_tokens`; see engine.core.prefix_cache
    num_shared_tokens: int = 0
    tenant_name: str = ""
    num_computed_tokens: int = 0
    num_prompt_tokens_computed: int = 0  # the furthest ever, so that recomputing is not counted twice
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache at first admission
    num_charged_tokens: int = 0  # positions that fair share has counted; computing them again is free
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0
    num_skips: int = 0  # how often others were admitted past it because it did not fit
    num_passes: int = 0  # how often its own tenant's went before it for the sake of a cached prefix
    longest_gap_seconds: float = 0.0  # the longest it waited between two of its tokens
    block_table: list[int] = field(default_factory=list)
    token_cost: float = 0.0  # what fair share counts for one token of its output
    num_expected_output_tokens: int = (
        0  # how long its answer is thought to get; looked up anew when it got there
    )
    num_promised_blocks: int = 0  # what it may need in all, once it started
    num_borrowed_tokens: int = 0  # found in blocks that another sequence held when this one was admitted
    sampling: SamplingParams | None = (
        None  # of its rows once `min_tokens` are reached; made when first needed
    )
    block_hashes: list[bytes] = field(
        default_factory=list
    )  # of its leading full blocks, as far as needed yet
    scheduled_at: float | None = None
    first_token_at: float | None = None
    waiting_for_token_since: float = field(init=False)

    def __post_init__(self) -> None:
        self.waiting_for_token_since = self.arrived_at

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose keys and values are not in the cache yet; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_interactive(self) -> bool:
        """Whether a person waits for it."""
        return self.sequence_class is SequenceClass.INTERACTIVE

    @property
    def is_decoding(self) -> bool:
        """Whether only its newest token is left to compute."""
        return self.num_uncomputed_tokens == 1 and self.num_output_tokens > 0

    @property
    def is_unpaid(self) -> bool:
        """Whether its next token is not paid for: it computes nothing until it is."""
        return self.num_paid_tokens is not None and self.num_output_tokens >= self.num_paid_tokens

    def append(self, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], EndReason | None]:
        """Appends tokens up to the one that ends the sequence, if one does: those kept, and why it ended."""
        known, params = self.token_ids, self.params
        num_before, most = len(known), self.num_prompt_tokens + params.max_tokens
        for token_id in token_ids:
            known.append(token_id)
            if token_id in params.stop_token_ids:
                return token_ids[: len(known) - num_before], EndReason.STOP
            if len(known) >= most:
                return token_ids[: len(known) - num_before], EndReason.LENGTH
        return token_ids, None
