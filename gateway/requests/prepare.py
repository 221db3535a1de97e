"""From what a caller asked for to prompt ids and bounds for the output, exact before anything is promised."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, TypeVar

from engine.protocol import AdmissionReason, EngineLimits, Sampling
from gateway.cache_namespace import num_common_tokens
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.requests.catalogue import ServedModel
from gateway.requests.prompt_text import PromptText, prompt_text
from gateway.requests.values import ChatPrompt, InferenceRequest, PreparedRequest, Prompt
from gateway.text.chat_template import TemplateError

USEFUL_OUTPUT_TOKENS: Final = 256  # without a wish of the caller's, fewer than these are not worth an answer
MOST_INLINE_MESSAGES: Final = 200  # about 1 ms of rendering; more than that would hold up the loop


Rendered = TypeVar("Rendered")


async def prepare(
    request: InferenceRequest, model: ServedModel, *, cache_group: str | None = None
) -> PreparedRequest:
    """Renders, tokenises and bounds a request. Raises InvalidRequest and ContextLengthExceeded.

    With a `cache_group`, the tokens that the group shares are counted too.
    """
    prompt_ids = await _prompt_ids(request.prompt, model)
    cap = output_cap(request, len(prompt_ids), model.limits)
    floor = cap if request.max_tokens is not None else min(USEFUL_OUTPUT_TOKENS, max(1, cap - 1))
    return PreparedRequest(
        request=request,
        prompt_ids=prompt_ids,
        sampling=_sampling(request, cap),
        output_cap=cap,
        output_floor=max(floor, request.min_tokens),
        num_shared_tokens=(
            0 if cache_group is None else await num_system_tokens(request.prompt, prompt_ids, model)
        ),
    )


async def num_system_tokens(prompt: Prompt, prompt_ids: Sequence[int], model: ServedModel) -> int:
    """How many of a prompt's first tokens say nothing but its leading system messages."""
    template = model.text.chat_template
    if not isinstance(prompt, ChatPrompt) or template is None:
        return 0
    system = tuple(takewhile(lambda message: message["role"] == "system", prompt.messages))
    if not system:
        return 0
    try:
        rendered = await _run(lambda: template.render_beginning(system), num_messages=len(system))
    except TemplateError:  # it wants a whole conversation, so where the system prompt ends is not known
        return 0
    system_ids = await model.text.tokenizer.encode(rendered, add_special_tokens=False)
    return num_common_tokens(system_ids, prompt_ids)


async def _prompt_ids(prompt: Prompt, model: ServedModel) -> tuple[int, ...]:
    num_messages = len(prompt.messages) if isinstance(prompt, ChatPrompt) else 0
    text = await _run(lambda: prompt_text(prompt, model), num_messages=num_messages)
    if not isinstance(text, PromptText):
        return text
    return await model.text.tokenizer.encode(text.text, add_special_tokens=text.add_special_tokens)


async def _run(render: Callable[[], Rendered], *, num_messages: int) -> Rendered:
    """Renders; many messages in a thread, so that the loop stays free."""
    return render() if num_messages <= MOST_INLINE_MESSAGES else await asyncio.to_thread(render)


def output_cap(request: InferenceRequest, num_prompt_tokens: int, limits: EngineLimits) -> int:
    """How many tokens the answer may have at most. Raises InvalidRequest and ContextLengthExceeded."""
    if num_prompt_tokens == 0:
        raise InvalidRequest(f"'{request.prompt_param}' holds no text.", param=request.prompt_param)
    wanted = request.max_tokens
    if wanted is not None and wanted > limits.max_output_len:
        raise InvalidRequest(
            f"max_tokens is {wanted}; this model generates at most {limits.max_output_len} tokens a request.",
            param="max_tokens",
            reason=AdmissionReason.OUTPUT_TOO_LONG,
        )
    if num_prompt_tokens + (wanted or 1) > limits.max_model_len:
        raise _too_long(request, num_prompt_tokens, limits.max_model_len)
    room = min(limits.max_model_len - num_prompt_tokens, limits.max_output_len)
    cap = wanted or min(room, request.usual_output_tokens or room)
    if request.min_tokens > cap:
        raise InvalidRequest(
            f"'min_tokens' is {request.min_tokens}, but there is room for {cap} tokens of output.",
            param="min_tokens",
        )
    return cap


def _too_long(request: InferenceRequest, num_prompt_tokens: int, context: int) -> ContextLengthExceeded:
    where = request.prompt_param
    wanted = request.max_tokens or 0
    return ContextLengthExceeded(
        f"This model's maximum context length is {context} tokens. However, you requested "
        f"{num_prompt_tokens + wanted} tokens ({num_prompt_tokens} in the {where}, {wanted} in the "
        f"completion). Please reduce the length of the {where} or completion.",
        param=where,
    )


def _sampling(request: InferenceRequest, max_tokens: int) -> Sampling:
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**63
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
    )
