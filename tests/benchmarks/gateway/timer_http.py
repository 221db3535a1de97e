"""The same timer behind OpenAI's HTTP: what the gateway's latency is held against, and what peers call.

As little as can answer: a parser in C, frames written by template.
"""

import asyncio
import json
from typing import Any, Final

import httptools
import msgspec

from tests.benchmarks.gateway.timer import Timed, Timer

LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
DEFAULT_NUM_TOKENS: Final = 16
_DONE: Final = b"data: [DONE]\n\n"


class Body(msgspec.Struct):
    """What of a request's body matters."""

    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @property
    def num_tokens(self) -> int:
        """How long the answer is to be."""
        return self.max_completion_tokens or self.max_tokens or DEFAULT_NUM_TOKENS


_decode: Final = msgspec.json.Decoder(Body).decode


class TimerHttp(asyncio.Protocol):
    """One connection of a client; one request at a time."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._num_sent = 0
        self._timed: Timed | None = None

    # --- asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self._timed is not None:
            self._timer.cancel(self._timed)

    # --- the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() != b"POST":
            self._transport.write(_whole(b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'))
            return
        body = _decode(self._body)
        self._num_sent = 0
        if body.stream:
            self._transport.write(_STREAM_HEAD + _chunk(_ROLE))
        self._timed = self._timer.begin(body.num_tokens, self._stream if body.stream else self._collect)

    # --- the answer --------------------------------------------------------------------------------------

    def _collect(self, count: int, is_last: bool) -> None:
        self._num_sent += count
        if is_last:
            self._transport.write(_whole(_answer(self._num_sent)))

    def _stream(self, count: int, is_last: bool) -> None:
        text = "".join(LETTERS[(self._num_sent + place) % len(LETTERS)] for place in range(count))
        self._num_sent += count
        frames = _frame(b'{"content":"' + text.encode() + b'"}', b"null")
        if is_last:
            frames += _frame(b"{}", b'"length"') + _DONE
        self._transport.write(_chunk(frames) + (b"0\r\n\r\n" if is_last else b""))


def _frame(delta: bytes, finish_reason: bytes) -> bytes:
    return (
        b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"tiny",'
        b'"choices":[{"index":0,"delta":' + delta + b',"finish_reason":' + finish_reason + b"}]}\n\n"
    )


def _answer(num_tokens: int) -> bytes:
    text = (LETTERS * (num_tokens // len(LETTERS) + 1))[:num_tokens]
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 8, "completion_tokens": num_tokens, "total_tokens": 8 + num_tokens}
    document = {
        "id": "chatcmpl-0", "object": "chat.completion", "created": 1_700_000_000, "model": "tiny",
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": usage,
    }  # fmt: skip
    return json.dumps(document).encode()


def _whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ROLE: Final = _frame(b'{"role":"assistant","content":""}', b"null")
