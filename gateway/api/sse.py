"""The bytes of a streamed answer, by the published rules. Pure.

No `id:` and no `event:` lines (the official client would parse an empty event), and a keep-alive of one line.
The parts of a frame that do not change are serialised once an answer.
"""

from typing import Final, Protocol

import msgspec

from engine.protocol import Usage
from gateway.rendering import AnswerHead, usage_object

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n"

_encode: Final = msgspec.json.Encoder().encode


class Frames(Protocol):
    """Makes the frames of one answer."""

    def first(self) -> bytes:
        """What comes before the text."""

    def text(self, text: str) -> bytes:
        """More text."""

    def last(self, finish_reason: str, usage: Usage, *, limited_by: str | None) -> bytes:
        """The end of the answer, without [DONE]. `limited_by`: the headers have gone, so it is told here."""


class ChatFrames:
    """Frames of a chat completion: the role in the first delta only."""

    def __init__(self, head: AnswerHead, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._before = _before(head, "chat.completion.chunk")
        self._after = _after(include_usage)

    def first(self) -> bytes:
        """The role."""
        return self._choice(b'{"role":"assistant","content":""}', b"null")

    def text(self, text: str) -> bytes:
        """More text."""
        return self._choice(b'{"content":' + _encode(text) + b"}", b"null")

    def last(self, finish_reason: str, usage: Usage, *, limited_by: str | None) -> bytes:
        """Why the answer ends and, if asked for, its usage."""
        frame = self._choice(b"{}", _encode(finish_reason), _limited(limited_by))
        return frame + _usage_frame(self._before, usage) if self._include_usage else frame

    def _choice(self, delta: bytes, finish_reason: bytes, more: bytes = b"") -> bytes:
        return (
            self._before
            + b'"choices":[{"index":0,"delta":'
            + delta
            + b',"logprobs":null,"finish_reason":'
            + finish_reason
            + b"}]"
            + more
            + self._after
        )


class CompletionFrames:
    """Frames of a text completion."""

    def __init__(self, head: AnswerHead, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._before = _before(head, "text_completion")
        self._after = _after(include_usage)

    def first(self) -> bytes:
        """Nothing: a completion has no role."""
        return b""

    def text(self, text: str) -> bytes:
        """More text."""
        return self._choice(_encode(text), b"null")

    def last(self, finish_reason: str, usage: Usage, *, limited_by: str | None) -> bytes:
        """Why the answer ends and, if asked for, its usage."""
        frame = self._choice(b'""', _encode(finish_reason), _limited(limited_by))
        return frame + _usage_frame(self._before, usage) if self._include_usage else frame

    def _choice(self, text: bytes, finish_reason: bytes, more: bytes = b"") -> bytes:
        return (
            self._before
            + b'"choices":[{"index":0,"text":'
            + text
            + b',"logprobs":null,"finish_reason":'
            + finish_reason
            + b"}]"
            + more
            + self._after
        )


def error_frame(body: bytes) -> bytes:
    """An error once the status has been sent; the stream is closed after it, without [DONE]."""
    return b"data: " + body + b"\n\n"


def _before(head: AnswerHead, kind: str) -> bytes:
    fields = {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": None,
        "service_tier": head.service_tier,
    }
    return b"data: " + _encode(fields)[:-1] + b","


def _after(include_usage: bool) -> bytes:
    return b',"usage":null}\n\n' if include_usage else b"}\n\n"


def _limited(limited_by: str | None) -> bytes:
    return b"" if limited_by is None else b',"x_sluice_output_limited_by":' + _encode(limited_by)


def _usage_frame(before: bytes, usage: Usage) -> bytes:
    return before + b'"choices":[],"usage":' + _encode(usage_object(usage)) + b"}\n\n"
