"""Reads the parts of a GGUF file: metadata, and tensors as they are stored. Knows nothing of what they mean.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the package gguf makes
several arrays for each token of a vocabulary: seconds for 49,152 tokens and as many merges.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_STRING, _ARRAY = 8, 9  # kinds of value; all others are numbers
_NUMBERS: Final = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # as struct names them
_PIECE_BLOCKS: Final = 2**13  # de-quantised at once: what comes of them still fits a processor's cache


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor, quantised as it is in the file."""

    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    data: np.ndarray  # bytes, in one row

    def floats(self) -> np.ndarray:
        # -> shape, float32
        """The numbers that it stands for."""
        values = np.empty(math.prod(self.shape), dtype=np.float32)
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        for first in range(0, len(values) // block_size, _PIECE_BLOCKS):
            last = first + _PIECE_BLOCKS
            piece = self.data[first * block_bytes : last * block_bytes]
            values[first * block_size : last * block_size] = gguf.dequantize(piece, self.kind)
        return values.reshape(self.shape)


@dataclass(frozen=True, kw_only=True)
class GgufParts:
    """What a file consists of, by name."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_parts(path: Path) -> GgufParts:
    """The parts of the file; tensors are not read yet. Raises OSError, or ValueError for a damaged file."""
    content = np.asarray(np.memmap(path, mode="r"))
    try:
        return _parts(content)
    except struct.error as error:
        raise ValueError("it ends too early") from error


def _parts(content: np.ndarray) -> GgufParts:
    cursor = _Cursor(content)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"version {version} is not known")
    num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
    metadata = _by_name((cursor.string(), cursor.value(cursor.number("I"))) for _ in range(num_values))
    places = _by_name((cursor.string(), _place(cursor)) for _ in range(num_tensors))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"an alignment of {alignment} is none")
    start = -(-cursor.position // alignment) * alignment
    return GgufParts(
        metadata=metadata,
        tensors={name: _tensor(content, start, *place) for name, place in places.items()},
    )


def _by_name(pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it has {name} twice")
        found[name] = value
    return found


def _place(cursor: "_Cursor") -> tuple[tuple[int, ...], gguf.GGMLQuantizationType, int]:
    """A tensor's shape, kind, and offset from where all of them begin."""
    sizes = cursor.numbers("Q", cursor.number("I"))
    return tuple(reversed(sizes)), gguf.GGMLQuantizationType(cursor.number("I")), cursor.number("Q")


def _tensor(
    content: np.ndarray, start: int, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType, offset: int
) -> StoredTensor:
    num_bytes = math.prod(gguf.quant_shape_to_byte_shape(shape, kind))
    data = content[start + offset : start + offset + num_bytes]
    if len(data) < num_bytes:
        raise ValueError("it ends too early")
    return StoredTensor(shape=shape, kind=kind, data=data)


class _Cursor:
    """Reads one value after the other."""

    def __init__(self, content: np.ndarray) -> None:
        self._content = content.data
        self.position = 0

    def take(self, num_bytes: int) -> bytes:
        taken = bytes(self._content[self.position : self.position + num_bytes])
        if len(taken) < num_bytes:
            raise ValueError("it ends too early")
        self.position += num_bytes
        return taken

    def numbers(self, kind: str, count: int) -> list[Any]:
        form = struct.Struct(f"<{count}{kind}")
        values = form.unpack_from(self._content, self.position)
        self.position += form.size
        return list(values)

    def number(self, kind: str) -> Any:
        return self.numbers(kind, 1)[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> Any:
        """A value of any kind, as plain Python."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _NUMBERS:
            raise ValueError(f"values of the kind {kind} are not known")
        return self.number(_NUMBERS[kind])

    def _array(self) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if kind in _NUMBERS:
            return self.numbers(_NUMBERS[kind], count)
        return [self.value(kind) for _ in range(count)]
