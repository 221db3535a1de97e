"""Parameters that change an answer and cannot be honoured here: refused, unless their value asks for nothing.

Ignoring one of them would give a wrong answer in silence; refusing `n: 1` breaks clients that send it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.errors import InvalidRequest


@dataclass(frozen=True)
class Unsupported:
    """`neutral` values ask for what happens anyway."""

    code: str
    neutral: tuple[Any, ...] = ()


def _parameter(*neutral: Any) -> Unsupported:
    return Unsupported("unsupported_parameter", neutral)


def _value(*neutral: Any) -> Unsupported:
    return Unsupported("unsupported_value", neutral)


UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    "audio": _parameter(),
    "best_of": _value(1),
    "echo": _value(False),
    "frequency_penalty": _parameter(0, 0.0),
    "function_call": _parameter("none", "auto"),
    "functions": _parameter([]),
    "logit_bias": _parameter({}),
    "logprobs": _parameter(False),
    "min_p": _parameter(0, 0.0),
    "modalities": _value(["text"]),
    "n": _value(1),
    "prediction": _parameter(),
    "presence_penalty": _parameter(0, 0.0),
    "repetition_penalty": _parameter(1, 1.0),
    "response_format": _value({"type": "text"}),
    "suffix": _parameter(""),
    "tool_choice": _parameter("none", "auto"),
    "tools": _parameter([]),
    "top_logprobs": _parameter(0),
    "web_search_options": _parameter(),
}


def refuse_unsupported(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raises InvalidRequest for the first of a body's fields that cannot be honoured."""
    for name in sorted(fields.keys() & UNSUPPORTED.keys()):
        if not _is_neutral(fields[name], UNSUPPORTED[name].neutral):
            raise InvalidRequest(
                f"'{name}' with this value is not supported by this server.",
                param=name,
                code=UNSUPPORTED[name].code,
            )


def _is_neutral(raw: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    try:
        value = msgspec.json.decode(raw)
    except msgspec.ValidationError:  # JSON, but a number larger than any that Python's decoder reads
        return False
    # by type too: for `logprobs`, False asks for nothing and 0 asks for the chosen token's
    return value is None or any(
        type(value) is type(candidate) and value == candidate for candidate in neutral
    )
