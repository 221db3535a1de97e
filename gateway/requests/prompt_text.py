"""From a prompt as sent to what a tokenizer is given: rendered messages, a text, or ids as they are. Pure."""

from typing import assert_never

import msgspec

from gateway.errors import InvalidRequest
from gateway.requests.catalogue import ServedModel
from gateway.requests.values import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from gateway.text.chat_template import TemplateError


class PromptText(msgspec.Struct, frozen=True):
    """A text to encode; a chat template brings the special tokens itself."""

    text: str
    add_special_tokens: bool


def prompt_text(prompt: Prompt, model: ServedModel) -> PromptText | tuple[int, ...]:
    """What a prompt says, to the model's own template and vocabulary. Raises InvalidRequest."""
    match prompt:
        case ChatPrompt():
            return PromptText(_rendered(prompt, model), add_special_tokens=False)
        case TextPrompt():
            return PromptText(prompt.text, add_special_tokens=True)
        case TokenPrompt():
            return _checked(prompt.ids, model.vocab_size)
        case _:
            assert_never(prompt)


def _rendered(prompt: ChatPrompt, model: ServedModel) -> str:
    template = model.text.chat_template
    if template is None:
        raise InvalidRequest(
            f"The model '{model.name}' has no chat template; use /v1/completions.", param="messages"
        )
    try:
        return template.render(prompt.messages)
    except TemplateError as error:
        raise InvalidRequest(
            f"The model's chat template refuses these messages: {error}.", param="messages"
        ) from error


def _checked(ids: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"'prompt[{index}]' is {token_id}; token ids of this model are 0 to {vocab_size - 1}.",
                param=f"prompt[{index}]",
            )
    return ids
