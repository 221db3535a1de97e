"""What a caller asked for, as values that cannot be wrong. Inside the gateway they are trusted.

Structs, here and wherever each request makes one: it makes two dozen, and a frozen dataclass takes ten
times as long to make.
"""

from collections.abc import Mapping

import msgspec

from engine.protocol import RequestClass, Sampling


class ChatPrompt(msgspec.Struct, frozen=True):
    """Messages, each with `role` and `content`, for the model's template."""

    messages: tuple[Mapping[str, str], ...]


class TextPrompt(msgspec.Struct, frozen=True):
    """A text to go on from."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True):
    """Token ids to go on from; not yet checked against a vocabulary."""

    ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One wanted answer. `max_tokens` is the wish of the caller, if there is one."""

    model: str
    prompt: Prompt
    request_class: RequestClass
    max_tokens: int | None
    usual_output_tokens: int | None = None
    """How long an answer is without `max_tokens`; None: as long as there is room for."""
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool

    @property
    def prompt_param(self) -> str:
        """The parameter that errors about the prompt name."""
        return "messages" if isinstance(self.prompt, ChatPrompt) else "prompt"


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose prompt is tokens and fits its model.

    `output_cap` is the most output there is room for; with less than `output_floor` the answer is of no use.
    They are equal only where the caller insists on its number.
    `sampling.max_tokens` is the cap until a reservation lowers it.
    The first `num_shared_tokens` of the prompt are a system prompt that its tenant shares with its group.
    """

    request: InferenceRequest
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    output_cap: int
    output_floor: int
    num_shared_tokens: int = 0

    def sampling_within(self, max_tokens: int) -> Sampling:
        """How to sample when `max_tokens` is all that is paid for."""
        if max_tokens >= self.sampling.max_tokens:
            return self.sampling
        return msgspec.structs.replace(self.sampling, max_tokens=max_tokens)
