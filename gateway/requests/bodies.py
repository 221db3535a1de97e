"""The bodies of inference requests as they come over the wire. Shapes and ranges only.

A body is read once per struct: the options that both endpoints share, and what to continue.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

PositiveInt = Annotated[int, Meta(ge=1)]
StopString = Annotated[str, Meta(min_length=1)]


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_obfuscation` is accepted and has no effect."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationOptions(msgspec.Struct, frozen=True):
    """What both inference endpoints take beside the prompt. `max_completion_tokens` wins over `max_tokens`.

    `top_k` (-1 or 0: off), `min_tokens` and `ignore_eos` are extensions.
    """

    model: str
    max_completion_tokens: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: str | None = None
    ignore_eos: bool | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message; only parts of type `text` are supported."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message. Parts of type `text` are joined."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    tool_calls: Any = None
    function_call: Any = None


class ChatMessages(msgspec.Struct, frozen=True):
    """What a chat completion continues."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]


class CompletionPrompt(msgspec.Struct, frozen=True):
    """What a completion continues: a text or token ids, or a list that holds one of these."""

    prompt: str | list[int | str | list[int]]
