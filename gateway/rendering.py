"""Answers and errors as JSON: what HTTP and the files of batches have in common. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.protocol import AdmissionReason, Usage, WaitReason
from gateway.errors import GatewayError, LimitReached
from gateway.logs import without_keys


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """What all frames of one answer share. `created` is a Unix time."""

    id: str
    created: int
    model: str
    service_tier: str


def chat_answer(head: AnswerHead, *, text: str, finish_reason: str, usage: Usage) -> bytes:
    """A chat completion."""
    message = {"role": "assistant", "content": text, "refusal": None}
    return _answer(head, "chat.completion", {"message": message}, finish_reason, usage)


def completion_answer(head: AnswerHead, *, text: str, finish_reason: str, usage: Usage) -> bytes:
    """A text completion."""
    return _answer(head, "text_completion", {"text": text}, finish_reason, usage)


def _answer(
    head: AnswerHead, kind: str, content: Mapping[str, Any], finish_reason: str, usage: Usage
) -> bytes:
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
    return msgspec.json.encode(
        {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": None,
            "service_tier": head.service_tier,
            "choices": [choice],
            "usage": usage_object(usage),
        }
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage as callers see it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """`param` names the culprit in the body; `code` is for programs.

    An extension: `reason` is why the request was not admitted, `wait_reason` what it last waited for.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    reason: AdmissionReason | None = None
    wait_reason: WaitReason | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every response that is no answer, and of the error event inside a stream."""

    error: ErrorDetail


def error_body(error: GatewayError) -> bytes:
    """The JSON of an error. What it quotes of the request may hold a key, and clients log errors."""
    kind = error.limit_type if isinstance(error, LimitReached) else error.type
    detail = ErrorDetail(
        without_keys(error.message),
        kind,
        error.param,
        error.code,
        reason=error.reason,
        wait_reason=error.wait_reason,
    )
    return msgspec.json.encode(ErrorBody(detail))
