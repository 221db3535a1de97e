"""The nouns of a load: who asks, when, for how much. Knows no clock, no HTTP and no text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

AT_ONCE: Final = 0.0


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """One tenant as the load sees it: a key, and a part of the requests by `weight`."""

    name: str
    key: str | None = None
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A run of prompt tokens. Equal names begin with equal tokens, so that prompts may share a prefix."""

    name: str
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request of a conversation.

    `new_segments` follow all that was said before. A client with `leaves_after_tokens` hangs up then.
    `think_seconds` pass between the answer before and this request.
    """

    new_segments: tuple[Segment, ...]
    num_output_tokens: int
    leaves_after_tokens: int | None = None
    think_seconds: float = 0.0

    @property
    def num_new_tokens(self) -> int:
        """What this turn adds to the prompt."""
        return sum(segment.num_tokens for segment in self.new_segments)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What one client does from its arrival on: a single request, or several that build on each other.

    `at_seconds` counts from the start of the run. `is_offline` asks for the class that waits for gaps.
    """

    turns: tuple[Turn, ...]
    tenant: Tenant
    at_seconds: float = AT_ONCE
    is_offline: bool = False


@dataclass(frozen=True, kw_only=True)
class OpenLoad:
    """Conversations that begin when their time has come, whatever became of those before."""

    name: str
    conversations: Sequence[Conversation]
    duration_seconds: float

    @property
    def num_requests(self) -> int:
        """Of all turns."""
        return _num_requests(self.conversations)


@dataclass(frozen=True, kw_only=True)
class ClosedLoad:
    """Conversations of which `concurrency` are under way at a time; one's end is the next one's start."""

    name: str
    conversations: Sequence[Conversation]
    concurrency: int

    @property
    def num_requests(self) -> int:
        """Of all turns."""
        return _num_requests(self.conversations)


Load = OpenLoad | ClosedLoad


def tenants_of(load: Load) -> list[Tenant]:
    """Every tenant that asks, once, in order of names."""
    by_name = {conversation.tenant.name: conversation.tenant for conversation in load.conversations}
    return [by_name[name] for name in sorted(by_name)]


def description(load: Load) -> str:
    """The load in half a line."""
    turns = [turn for conversation in load.conversations for turn in conversation.turns]
    prompt = sum(turn.num_new_tokens for turn in turns) / max(1, len(turns))
    output = sum(turn.num_output_tokens for turn in turns) / max(1, len(turns))
    sizes = f"{len(turns)} requests of {prompt:,.0f} new prompt and {output:,.0f} output tokens on average"
    match load:
        case OpenLoad():
            return f"open loop: {sizes}, over {round(load.duration_seconds, 1):g} s"
        case ClosedLoad():
            return f"closed loop: {sizes}, {load.concurrency} at a time"
        case _:
            assert_never(load)


def closed_load(
    tenants: Sequence[Tenant],
    *,
    concurrency: int,
    num_requests: int,
    num_prompt_tokens: int,
    num_output_tokens: int,
) -> ClosedLoad:
    """Requests of one size that share no prefix, each tenant's in its turn; weights have no say."""
    conversations = [
        Conversation(
            tenant=tenants[number % len(tenants)],
            turns=(
                Turn(
                    new_segments=(Segment(name=f"request {number}", num_tokens=num_prompt_tokens),),
                    num_output_tokens=num_output_tokens,
                ),
            ),
        )
        for number in range(num_requests)
    ]
    return ClosedLoad(name=f"closed-{concurrency}", conversations=conversations, concurrency=concurrency)


def _num_requests(conversations: Sequence[Conversation]) -> int:
    return sum(len(conversation.turns) for conversation in conversations)
