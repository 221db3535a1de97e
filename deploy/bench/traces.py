"""Reads two public formats of traces and turns their rows into a load. Pure: told the lines.

Azure: CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Mooncake: JSON lines with timestamp (ms),
input_length, output_length and hash_ids, one for each 512 prompt tokens: equal ids stand for equal text, and
so they do here.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Final

import msgspec

from deploy.bench.lengths import Sizes, fitted
from deploy.bench.scenarios import dealt
from deploy.bench.workload import Conversation, OpenLoad, Segment, Tenant, Turn

BLOCK_TOKENS: Final = 512
AZURE_COLUMNS: Final = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class TraceUnreadable(ValueError):
    """A line is none of the format; the message names it."""


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """One request as it was. `at_seconds` counts from the first row."""

    at_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TraceScale:
    """How a trace is made to fit: `length` multiplies tokens, `time` multiplies gaps (2 is half the rate)."""

    length: float = 1.0
    time: float = 1.0


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[int, ...]


def read_trace(lines: Iterable[str], name: str) -> list[TraceRow]:
    """The rows in order of time, from either format; raises TraceUnreadable naming the line."""
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise TraceUnreadable(f"{name} is empty")
    is_mooncake = numbered[0][1].lstrip().startswith("{")
    rows = list(_mooncake(numbered, name) if is_mooncake else _azure(numbered, name))
    if not rows:
        raise TraceUnreadable(f"{name} has a header and no rows")
    first = min(row.at_seconds for row in rows)
    return sorted(
        (replace(row, at_seconds=row.at_seconds - first) for row in rows),
        key=lambda row: row.at_seconds,
    )


def trace_load(
    rows: Sequence[TraceRow],
    *,
    name: str,
    scale: TraceScale,
    duration_seconds: float | None,
    tenants: Sequence[Tenant],
    seed: int,
    max_model_len: int,
) -> OpenLoad:
    """The rows that fall into the duration once time is scaled (None: all of them), dealt to tenants."""
    timed = [(row, row.at_seconds * scale.time) for row in rows]
    kept = [(row, at) for row, at in timed if duration_seconds is None or at < duration_seconds]
    last = max((at for _, at in kept), default=0.0)
    return OpenLoad(
        name=name,
        duration_seconds=last if duration_seconds is None else duration_seconds,
        conversations=[
            Conversation(at_seconds=at, tenant=tenant, turns=(_turn(number, row, scale, max_model_len),))
            for number, ((row, at), tenant) in enumerate(
                zip(kept, dealt(tenants, len(kept), seed), strict=True)
            )
        ],
    )


def _turn(number: int, row: TraceRow, scale: TraceScale, max_model_len: int) -> Turn:
    sizes = fitted(row.num_prompt_tokens * scale.length, row.num_output_tokens * scale.length, max_model_len)
    return Turn(
        new_segments=tuple(_segments(number, row, scale, sizes)), num_output_tokens=sizes.num_output_tokens
    )


def _segments(number: int, row: TraceRow, scale: TraceScale, sizes: Sizes) -> Iterator[Segment]:
    """One for each hash id, as long as its block once scaled; what no id covers is the request's own."""
    covered = 0
    for place, hash_id in enumerate(row.hash_ids, 1):
        end = min(round(place * BLOCK_TOKENS * scale.length), sizes.num_prompt_tokens)
        if end > covered:
            yield Segment(name=f"block {hash_id}", num_tokens=end - covered)
            covered = end
    if covered < sizes.num_prompt_tokens:
        yield Segment(name=f"request {number}", num_tokens=sizes.num_prompt_tokens - covered)


def _mooncake(lines: Sequence[tuple[int, str]], name: str) -> Iterator[TraceRow]:
    decode = msgspec.json.Decoder(_MooncakeLine).decode
    for number, line in lines:
        try:
            found = decode(line)
        except msgspec.DecodeError as error:
            raise TraceUnreadable(f"{name} line {number}: {error}") from error
        yield TraceRow(
            at_seconds=found.timestamp / 1_000,
            num_prompt_tokens=found.input_length,
            num_output_tokens=found.output_length,
            hash_ids=found.hash_ids,
        )


def _azure(lines: Sequence[tuple[int, str]], name: str) -> Iterator[TraceRow]:
    (first_number, header), *others = lines
    if header.strip().lstrip("\ufeff").split(",") != AZURE_COLUMNS:
        raise TraceUnreadable(
            f"{name} line {first_number}: neither a JSON object nor the header {','.join(AZURE_COLUMNS)}"
        )
    for number, line in others:
        try:
            at, prompt, output = next(csv.reader([line]))
            yield TraceRow(
                at_seconds=datetime.fromisoformat(at).timestamp(),
                num_prompt_tokens=_count(prompt),
                num_output_tokens=_count(output),
            )
        except ValueError as error:
            raise TraceUnreadable(f"{name} line {number}: {error}") from error


def _count(text: str) -> int:
    if (count := int(text)) < 0:
        raise ValueError(f"{count} is no count of tokens")
    return count
