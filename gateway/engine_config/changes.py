"""What may be set of an engine's limits, and one line for what may not. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from engine.protocol import GuardrailMode, GuardrailOrders, LimitChanges
from gateway.engine_config.values import EngineInForce
from gateway.tenants.errors import BadValue

LIMIT_KEYS: Final = LimitChanges.__struct_fields__
HIGHEST: Final = 2**31 - 1  # no engine holds more of anything, and every encoding holds this
MOST_GUARDRAIL_LEVEL: Final = 5

Value = int | float | str | None


def changed_limits(old: LimitChanges, changes: Mapping[str, Value]) -> LimitChanges:
    """`old` with some keys set anew; None clears one. A number may be given as its text.

    Raises BadValue with a line that names the key.
    """
    return msgspec.structs.replace(old, **{key: _checked(key, value) for key, value in changes.items()})


def changed_orders(old: GuardrailOrders, *, mode: GuardrailMode | None, level: int | None) -> GuardrailOrders:
    """`old` with another mode or level; a level belongs to manual mode. Raises BadValue."""
    mode = mode or old.mode
    if level is None:
        level = old.level if mode is GuardrailMode.MANUAL else 0
    elif mode is not GuardrailMode.MANUAL:
        raise BadValue(f"A level can be ordered in manual mode only, and the mode is {mode}.")
    if not 0 <= level <= MOST_GUARDRAIL_LEVEL:
        raise BadValue(f"A guardrail level is 0 (normal) to {MOST_GUARDRAIL_LEVEL}, not {level}.")
    return GuardrailOrders(mode=mode, level=level)


def refuse_contradiction(*, old: LimitChanges, new: LimitChanges, engines: Sequence[EngineInForce]) -> None:
    """Raises BadValue where a step could not hold one token of every sequence, as far as that is known."""
    _refuse_contradiction(tokens=new.max_num_batched_tokens, seqs=new.max_num_seqs)
    for engine in engines:
        _refuse_contradiction(
            tokens=_expected("max_num_batched_tokens", old, new, engine),
            seqs=_expected("max_num_seqs", old, new, engine),
        )


def _refuse_contradiction(*, tokens: int | None, seqs: int | None) -> None:
    if tokens is not None and seqs is not None and tokens < seqs:
        raise BadValue(f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({seqs}).")


def builtins(value: msgspec.Struct) -> dict[str, Any]:
    """A struct as JSON holds it, without what has its default."""
    as_builtins: dict[str, Any] = msgspec.to_builtins(value)
    return as_builtins


def _expected(key: str, old: LimitChanges, new: LimitChanges, engine: EngineInForce) -> int | None:
    """What an engine would have: what is set, or what it has by itself if that can be seen now."""
    wanted: int | None = getattr(new, key)
    if wanted is not None:
        return wanted
    is_its_own = getattr(old, key) is None and engine.guardrail_level == 0
    in_force: int = getattr(engine.limits, key)
    return in_force if is_its_own else None


def _checked(key: str, value: Value) -> int | float | None:
    if key not in LIMIT_KEYS:
        raise BadValue(f"There is no '{key}'; what can be set is {', '.join(LIMIT_KEYS)}.")
    if value is None:
        return None
    try:
        read = getattr(msgspec.convert({key: value}, LimitChanges, strict=not isinstance(value, str)), key)
    except msgspec.ValidationError:
        read = None
    if read is None or read > HIGHEST:
        raise BadValue(f"{key} must be {_range(key)}, not {_quoted(value)}.")
    number: int | float = read
    return number


def _quoted(value: Value) -> str:
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _range(key: str) -> str:
    """A key's range in words, from the wire's own type of it."""
    kind = _types()[key]
    assert isinstance(kind, inspect.IntType | inspect.FloatType)
    noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
    highest = kind.le if kind.le is not None or kind.lt is not None else HIGHEST
    bounds = {"of at least": kind.ge, "above": kind.gt, "at most": highest, "below": kind.lt}
    return f"{noun} " + " and ".join(
        f"{words} {bound:g}" if isinstance(bound, float) else f"{words} {bound}"
        for words, bound in bounds.items()
        if bound is not None
    )


def _types() -> dict[str, inspect.Type]:
    """The type of each key, without the None that all of them may be."""
    struct = inspect.type_info(LimitChanges)
    assert isinstance(struct, inspect.StructType)
    return {
        field.name: next(
            kind
            for kind in (field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,))
            if not isinstance(kind, inspect.NoneType)
        )
        for field in struct.fields
    }
