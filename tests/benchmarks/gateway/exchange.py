"""One request and what is seen of its answer, byte by byte as it arrives. Pure: told the time.

An answer in one piece is decoded once it is whole; of a stream, each event with text has its time.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from deploy.bench.stream import AnswerReader, Usage, reason_of

CUT: Final = "connection lost"
UNANSWERED: Final = "no answer in time"
_ID: Final = b'"id":"'


class Leaving(Enum):
    """How a client goes: it resets the connection, or closes it."""

    RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is unsent is thrown away, the peer gets RST
    CLOSE = struct.pack("ii", 0, 0)  # FIN


@dataclass(frozen=True, kw_only=True)
class Leave:
    """When a client goes: with so many tokens received, or some time after asking; and how."""

    how: Leaving
    with_tokens: int | None = None
    after_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A request as bytes. `tag` names its kind in the records; `leave` None waits for the whole answer."""

    request: bytes
    tag: str = ""
    leave: Leave | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a client saw of one request. Times are seconds of the system's monotonic clock.

    `due_at` is when it ought to have been sent. `error` is None for a whole answer, and for a client that
    left as planned. `num_tokens` of a stream arrived here, whatever the server counted; the prompt's are told
    with whole answers only.
    """

    tag: str
    due_at: float
    started_at: float
    ended_at: float
    first_text_at: float | None = None
    gaps: tuple[float, ...] = ()
    status: int = 0
    generation_id: str = ""
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    error: str | None = None
    has_left: bool = False

    @property
    def is_complete(self) -> bool:
        """A whole answer came."""
        return self.error is None and not self.has_left

    @property
    def latency(self) -> float:
        """From when it was due to the end of the answer."""
        return self.ended_at - self.due_at

    @property
    def first_text_latency(self) -> float | None:
        """From when it was due to the first text."""
        return None if self.first_text_at is None else self.first_text_at - self.due_at


class _Whole(msgspec.Struct):
    id: str = ""
    usage: Usage = Usage()


_decode: Final = msgspec.json.Decoder(_Whole).decode


class Exchange:
    """One request under way. `on_end` is told once what came of it."""

    def __init__(self, shot: Shot, due_at: float, on_end: Callable[[Seen], None]) -> None:
        self.shot = shot
        self.due_at = due_at
        self.started_at = due_at
        self.status = 0
        self.is_stream = False
        self.is_over = False
        self._stream = AnswerReader()
        self._body = b""
        self._generation_id = ""
        self._num_prompt_tokens = 0
        self._on_end = on_end

    @property
    def num_tokens(self) -> int:
        """Letters received so far of a stream: a token is a letter here."""
        return len(self._stream.text)

    @property
    def wants_to_leave(self) -> bool:
        """Whether it has all the tokens that it wanted."""
        leave = self.shot.leave
        return leave is not None and leave.with_tokens is not None and self.num_tokens >= leave.with_tokens

    def take(self, body: bytes, now: float) -> None:
        """Part of the answer's body."""
        if not self.is_stream:
            self._body += body
            return
        if not self._generation_id and (start := body.find(_ID)) >= 0:
            start += len(_ID)
            self._generation_id = body[start : body.index(b'"', start)].decode()
        self._stream.feed(body, now)

    def complete(self, now: float) -> None:
        """The answer has ended."""
        if self.status != 200:
            self._end(now, error=reason_of(self._body, status=self.status))
        elif self.is_stream:
            self._end(now, error=self._stream.error, num_tokens=self.num_tokens)
        else:
            whole = _decode(self._body)
            self._generation_id = whole.id
            self._num_prompt_tokens = whole.usage.prompt_tokens
            self._end(now, num_tokens=whole.usage.completion_tokens)

    def leave(self, now: float) -> None:
        """The client goes, as its plan says."""
        self._end(now, has_left=True, num_tokens=self.num_tokens)

    def lose(self, now: float) -> None:
        """The connection is gone, or never was."""
        self._end(now, error=CUT, num_tokens=self.num_tokens)

    def give_up(self, now: float) -> None:
        """Nobody waits for the rest any more."""
        self._end(now, error=UNANSWERED, num_tokens=self.num_tokens)

    def _end(
        self, now: float, *, error: str | None = None, num_tokens: int = 0, has_left: bool = False
    ) -> None:
        if self.is_over:
            return
        self.is_over = True
        times = self._stream.token_times
        self._on_end(
            Seen(
                tag=self.shot.tag,
                due_at=self.due_at,
                started_at=self.started_at,
                ended_at=now,
                first_text_at=times[0] if times else None,
                gaps=tuple(map(float.__sub__, times[1:], times)),
                status=self.status,
                generation_id=self._generation_id,
                num_prompt_tokens=self._num_prompt_tokens,
                num_tokens=num_tokens,
                error=error,
                has_left=has_left,
            )
        )
