"""Reads a streamed answer as it arrives: when text came, how much, and why it failed. Pure: told the time."""

from typing import Any, Final

import msgspec

DONE: Final = b"[DONE]"
CUT: Final = "stream_cut"
UNREADABLE: Final = "unreadable_answer"


class Delta(msgspec.Struct, frozen=True):
    """What a chat completion adds."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """One answer's part of an event."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def new_text(self) -> str:
        """Of either endpoint; empty where an event brings none."""
        return self.text or (self.delta and self.delta.content) or ""


class PromptDetails(msgspec.Struct, frozen=True):
    """Of a prompt's tokens, those that came from a cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """What a server counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class AnswerReader:
    """Collects one answer from the bytes of its stream.

    `token_times` has the time of each event with text; `usage` is None until the server tells.
    """

    def __init__(self) -> None:
        self.token_times: list[float] = []
        self.usage: Usage | None = None
        self._texts: list[str] = []
        self._rest = b""
        self._reason: str | None = None
        self._is_finished = False

    @property
    def text(self) -> str:
        """All so far."""
        return "".join(self._texts)

    @property
    def error(self) -> str | None:
        """Why the answer, now that its stream has ended, is none; None when it is whole."""
        return self._reason or (None if self._is_finished else CUT)

    def feed(self, data: bytes, now: float) -> None:
        """Takes what arrived at `now`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now)

    def _take(self, data: bytes, now: float) -> None:
        if data == DONE:
            self._is_finished = True
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            self._reason = UNREADABLE
            return
        if event.error is not None:
            self._reason = reason_of(data, status=None)
        if event.usage is not None:
            self.usage = event.usage
        for choice in event.choices:
            if choice.finish_reason is not None:
                self._is_finished = True
            if choice.new_text:
                self._texts.append(choice.new_text)
                self.token_times.append(now)


def reason_of(body: bytes, *, status: int | None) -> str:
    """The shortest word for a failure: ours has a `reason`, most have a `code` or a `type`, all a status."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        document = None
    error = document.get("error", document) if isinstance(document, dict) else None
    if isinstance(error, dict):
        for field in ("reason", "code", "type"):
            if isinstance(error.get(field), str) and error[field]:
                return str(error[field])
    return "error_event" if status is None else f"http_{status}"


_decode: Final = msgspec.json.Decoder(Event).decode
