"""What arrives at a simulated engine, and what became of it."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.core.lines import Part
from engine.core.outcome import Refusal
from engine.core.sequence import GenerationParams, Sequence, SequenceClass

END_TOKEN = 0
VOCAB_SIZE = 1 << 24
FOREVER = 1e9
ONLY_KEY = (Part("project"), Part("key"))  # a tenant's, unless it has several


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request: when it comes (seconds), whose it is, and how long it is.

    `max_tokens` is what is asked for; the answer ends by itself after `num_output_tokens`. Without
    `token_ids` the prompt is any text of that length. `known_as` is the tenant that the scheduler is told.
    """

    at: float
    tenant: str
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    sequence_class: SequenceClass = SequenceClass.INTERACTIVE
    weight: float = 1.0
    deadline_seconds: float = FOREVER
    cache_namespace: bytes = b""
    token_ids: tuple[int, ...] | None = None
    stop_token_ids: frozenset[int] = frozenset([END_TOKEN])
    known_as: str | None = None

    def prompt(self) -> list[int]:
        """The prompt's token ids."""
        if self.token_ids is not None:
            assert len(self.token_ids) == self.num_prompt_tokens, "the prompt has another length"
            return list(self.token_ids)
        first = 1 + self.num_output_tokens
        return list(range(first, first + self.num_prompt_tokens))

    def sequence(self, id: str, *, owner: object) -> Sequence:
        """The request as the scheduler takes it."""
        return Sequence(
            id=id,
            trace_id=id,
            owner=owner,
            tenant=self.known_as or self.tenant,
            sequence_class=self.sequence_class,
            token_ids=self.prompt(),
            num_prompt_tokens=self.num_prompt_tokens,
            params=GenerationParams(
                temperature=0.0, max_tokens=self.max_tokens, stop_token_ids=self.stop_token_ids
            ),
            arrived_at=self.at,
            deadline=self.at + self.deadline_seconds,
            weight=self.weight,
            within=ONLY_KEY,
            cache_namespace=self.cache_namespace,
        )


@dataclass(eq=False, slots=True, kw_only=True)
class Served:
    """What became of a request. Durations are seconds; None is what never happened."""

    id: str
    tenant: str
    sequence_class: SequenceClass
    arrived_at: float
    num_prompt_tokens: int
    num_output_tokens: int  # that it would have, undisturbed
    queue_wait: float | None = None
    first_token_after: float | None = None
    gaps: "array[float]" = field(default_factory=lambda: array("d"))  # every inter-token latency
    ended_at: float | None = None
    end: str | None = None  # the end reason's, or the refusal reason's, value
    refusal: Refusal | None = None
    num_cached_tokens: int = 0
    num_computed_prompt_tokens: int = 0  # by steps, first time; not what the prefix cache gave
    num_preemptions: int = 0
    output: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def is_interactive(self) -> bool:
        """Whether a person waited."""
        return self.sequence_class is SequenceClass.INTERACTIVE

    @property
    def latency(self) -> float | None:
        """Seconds from arrival to the end."""
        return None if self.ended_at is None else self.ended_at - self.arrived_at


def waits_for_first_token(requests: Iterable[Served], until: float) -> list[float]:
    """Every time to first token (seconds); who had none by `until`, or gave up, waited at least as long."""
    return [
        served.first_token_after
        if served.first_token_after is not None
        else (until if served.ended_at is None else served.ended_at) - served.arrived_at
        for served in requests
    ]


def token_gaps(requests: Iterable[Served]) -> list[float]:
    """Every inter-token latency (seconds)."""
    return [gap for served in requests for gap in served.gaps]


def quantile(values: list[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed; NaN without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
