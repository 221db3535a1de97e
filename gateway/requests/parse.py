"""Bytes of a body to one frozen value, or an error that names the parameter. Pure."""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar, assert_never

import msgspec

from engine.protocol import RequestClass
from gateway.errors import InvalidRequest
from gateway.requests.bodies import (
    ChatMessage,
    ChatMessages,
    CompletionPrompt,
    ContentPart,
    GenerationOptions,
)
from gateway.requests.decode import decode
from gateway.requests.unsupported import refuse_unsupported
from gateway.requests.values import ChatPrompt, InferenceRequest, Prompt, TextPrompt, TokenPrompt

SERVICE_TIERS: Final[Mapping[str | None, RequestClass]] = {
    None: RequestClass.INTERACTIVE,
    "auto": RequestClass.INTERACTIVE,
    "default": RequestClass.INTERACTIVE,
    "flex": RequestClass.OFFLINE,
}
COMPLETION_TOKENS: Final = 16  # what OpenAI's reference says of `max_tokens` when it is absent


def parse_chat(body: bytes) -> InferenceRequest:
    """The request in a body of `/v1/chat/completions`. Raises InvalidRequest."""
    options = _parse_options(body)
    messages = decode(body, ChatMessages).messages
    return _request(
        options, ChatPrompt(tuple(_message(message, index) for index, message in enumerate(messages)))
    )


def parse_completion(body: bytes) -> InferenceRequest:
    """The request in a body of `/v1/completions`. Raises InvalidRequest."""
    options = _parse_options(body)
    request = _request(options, _prompt(decode(body, CompletionPrompt).prompt))
    return msgspec.structs.replace(request, usual_output_tokens=max(COMPLETION_TOKENS, request.min_tokens))


PARSERS: Final[Mapping[str, Callable[[bytes], InferenceRequest]]] = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
}


def _parse_options(body: bytes) -> GenerationOptions:
    refuse_unsupported(decode(body, dict[str, msgspec.Raw]))
    options = decode(body, GenerationOptions)
    if options.stream_options is not None and not options.stream:
        raise InvalidRequest(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    if options.service_tier not in SERVICE_TIERS:
        raise InvalidRequest(
            f"'service_tier' must be 'auto', 'default' or 'flex', not '{options.service_tier}'.",
            param="service_tier",
            code="unsupported_value",
        )
    return options


def _request(options: GenerationOptions, prompt: Prompt) -> InferenceRequest:
    max_tokens = options.max_completion_tokens or options.max_tokens
    min_tokens = options.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest(
            f"'min_tokens' ({min_tokens}) is above the maximum of {max_tokens}.", param="min_tokens"
        )
    stream_options = options.stream_options
    return InferenceRequest(
        model=options.model,
        prompt=prompt,
        request_class=SERVICE_TIERS[options.service_tier],
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=1.0 if options.temperature is None else options.temperature,
        top_p=1.0 if options.top_p is None else options.top_p,
        top_k=max(0, options.top_k or 0),
        seed=options.seed,
        stops=(options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ()),
        ignore_eos=options.ignore_eos or False,
        stream=options.stream or False,
        include_usage=stream_options is not None and bool(stream_options.include_usage),
    )


# --- prompts -----------------------------------------------------------------------------------------------


def _message(message: ChatMessage, index: int) -> Mapping[str, str]:
    where = f"messages[{index}]"
    if message.role in ("tool", "function"):
        raise _unsupported(f"The role '{message.role}' is not supported.", f"{where}.role")
    if message.tool_calls:
        raise _unsupported("Tool calls are not supported.", f"{where}.tool_calls")
    if message.function_call:
        raise _unsupported("Function calls are not supported.", f"{where}.function_call")
    # Templates know no `developer`: it is the newer name of the same thing.
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": _content(message.content, where)}


def _content(content: str | list[ContentPart] | None, where: str) -> str:
    match content:
        case str():
            return content
        case list():
            return "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
        case None:
            raise InvalidRequest(f"'{where}.content' must not be null.", param=f"{where}.content")
        case _:
            assert_never(content)


def _part(part: ContentPart, where: str) -> str:
    if part.type != "text":
        raise _unsupported(f"Content of type '{part.type}' is not supported.", f"{where}.type")
    if part.text is None:
        raise InvalidRequest(f"Missing required parameter: '{where}.text'.", param=f"{where}.text")
    return part.text


def _prompt(prompt: str | list[int | str | list[int]]) -> Prompt:
    if isinstance(prompt, str):
        return TextPrompt(_not_empty(prompt))
    if all(isinstance(item, int) for item in prompt):
        return TokenPrompt(_not_empty(tuple(item for item in prompt if isinstance(item, int))))
    if len(prompt) > 1:
        raise _unsupported("Several prompts in one request are not supported; send one each.", "prompt")
    only = prompt[0]
    return TextPrompt(_not_empty(only)) if isinstance(only, str) else _token_list(only)


def _token_list(item: int | list[int]) -> Prompt:
    return TokenPrompt(_not_empty((item,) if isinstance(item, int) else tuple(item)))


Sized = TypeVar("Sized", str, tuple[int, ...])


def _not_empty(prompt: Sized) -> Sized:
    if not prompt:
        raise InvalidRequest("'prompt' must not be empty.", param="prompt")
    return prompt


def _unsupported(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="unsupported_value")


# --- JSON --------------------------------------------------------------------------------------------------
