"""Reads a form with a file in it, piece by piece: what comes in goes out as events, and nothing is kept.

Everything but the file is small: fields, their number and their headers are bounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import InvalidRequest

MAX_PARTS: Final = 16
MAX_FIELD_BYTES: Final = 4 * 1024


@dataclass(frozen=True)
class Field:
    """A field, whole."""

    name: str
    value: str


@dataclass(frozen=True)
class FileBegins:
    """A file follows, in a field of this name."""

    name: str
    filename: str


@dataclass(frozen=True)
class FileBytes:
    """Some of it."""

    data: bytes


FormEvent = Field | FileBegins | FileBytes


class Form:
    """A form that is being read. `is_whole`: its last boundary came."""

    def __init__(self, content_type: str) -> None:
        self.is_whole = False
        self._events: list[FormEvent] = []
        self._num_parts = 0
        self._header_name = b""
        self._header_value = b""
        self._disposition: dict[bytes, bytes] = {}
        self._value = b""
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._add_to_header_name,
                "on_header_value": self._add_to_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def feed(self, chunk: bytes) -> Iterator[FormEvent]:
        """What the chunk brings. Raises InvalidRequest."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidRequest(f"The form cannot be read: {error}.") from error
        events, self._events = self._events, []
        return iter(events)

    @property
    def _is_file(self) -> bool:
        return b"filename" in self._disposition

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"The form has over {MAX_PARTS} parts.")
        self._disposition, self._value = {}, b""

    def _add_to_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_to_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            _, self._disposition = parse_options_header(self._header_value)
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        if self._is_file:
            self._events.append(FileBegins(self._name(), _text(self._disposition[b"filename"])))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._events.append(FileBytes(data[start:end]))
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"A field of the form is over {MAX_FIELD_BYTES} bytes.", param=self._name())

    def _end_part(self) -> None:
        if not self._is_file:
            self._events.append(Field(self._name(), _text(self._value)))

    def _end(self) -> None:
        self.is_whole = True

    def _name(self) -> str:
        return _text(self._disposition.get(b"name", b""))


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 256:
        raise InvalidRequest("The body has to be multipart/form-data, with a boundary.")
    return boundary


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("A name or a value in the form is not UTF-8.") from error
