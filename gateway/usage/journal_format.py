"""What a journal says, and how it lies in a file: a frame a record, one after the other. Knows no file.

    length (4 bytes) | CRC-32 (4 bytes) | record, msgpack      little-endian; no frame is empty

Whatever cuts a file off, every record whose frame is whole can be read.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never
from zlib import crc32

import msgspec

from engine.protocol import Usage
from gateway.usage.outcome import Outcome


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A request was admitted with so many tokens; who pays, `account` tells the one who wrote it.

    Said again of a request that is open, it takes the place of all that was said of it before: how far it
    had come at most included, which at first is nowhere.
    """

    request_id: str
    account: bytes
    tokens: int
    admitted_at: datetime
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def most_used(self) -> Usage | None:
        """What its client got is at most this; None: it got nothing."""
        if not self.prompt_tokens and not self.completion_tokens:
            return None
        return Usage(self.prompt_tokens, 0, self.completion_tokens)


class Extended(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """An open request got more tokens."""

    request_id: str
    tokens: int


class Reached(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """An open request's prompt is computed, and its client is about to get output: so much at most."""

    request_id: str
    prompt_tokens: int
    completion_tokens: int


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """An open request ended and used this much; zero means that it used nothing."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    outcome: Outcome

    @property
    def usage(self) -> Usage:
        """As the engine counted it."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
        )


JournalRecord = Opened | Extended | Reached | Closed

_HEADER: Final = struct.Struct("<II")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(JournalRecord).decode


def frame(record: JournalRecord) -> bytes:
    """The bytes of a record."""
    payload = _encode(record)
    return _HEADER.pack(len(payload), crc32(payload)) + payload


def read(data: bytes) -> tuple[list[JournalRecord], int]:
    """The records up to the first that is not whole, and how many bytes they take."""
    records: list[JournalRecord] = []
    position = 0
    while position + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, position)
        payload = data[position + _HEADER.size : position + _HEADER.size + length]
        if len(payload) < length or crc32(payload) != checksum:
            break
        try:
            records.append(_decode(payload))
        except msgspec.DecodeError:  # of a later version
            break
        position += _HEADER.size + length
    return records, position


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a life left behind, by request: what was open with all its tokens, and what had ended."""

    open: Mapping[str, Opened]
    closed: Mapping[str, tuple[Opened, Closed]]


def replayed(records: Iterable[JournalRecord]) -> Replayed:
    """Where these records lead. What is said of a request that nobody opened was stored before."""
    opened: dict[str, Opened] = {}
    closed: dict[str, tuple[Opened, Closed]] = {}
    for record in records:
        match record:
            case Opened():
                opened[record.request_id] = record
            case Extended():
                if record.request_id in opened:
                    opened[record.request_id] = extended(opened[record.request_id], record)
            case Reached():
                if record.request_id in opened:
                    opened[record.request_id] = reached(opened[record.request_id], record)
            case Closed():
                if record.request_id in opened:
                    closed[record.request_id] = opened.pop(record.request_id), record
            case _:
                assert_never(record)
    return Replayed(open=opened, closed=closed)


def extended(opened: Opened, by: Extended) -> Opened:
    """An open request with the tokens it has got by now."""
    return msgspec.structs.replace(opened, tokens=opened.tokens + by.tokens)


def reached(opened: Opened, by: Reached) -> Opened:
    """An open request that has come further."""
    return msgspec.structs.replace(
        opened, prompt_tokens=by.prompt_tokens, completion_tokens=by.completion_tokens
    )
