"""The bodies of answers that are not streamed. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.protocol import Usage
from gateway.api.sse import AnswerHead, usage_object


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
