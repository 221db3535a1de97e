"""What operators want of this engine: changes to the limits of the start, checked before they are obeyed."""

from dataclasses import replace

from engine import protocol
from engine.core.admission import within_cache
from engine.core.guardrails import Mode
from engine.core.kv_cache import KvCache
from engine.core.limits import LimitError, Limits
from engine.loop import Configuration


class DesiredState:
    """Turns what gateways push into configurations. An absent change means the value of the start."""

    def __init__(self, limits: Limits, *, kv_cache: KvCache, context_length: int) -> None:
        """`limits` are those of the start; no request can be longer than `context_length`."""
        self._limits = limits
        self._kv_cache = kv_cache
        self._context_length = context_length

    def configuration(self, message: protocol.Configure) -> Configuration:
        """What `message` asks for. Raises LimitError, in a line for the operator, when that cannot be."""
        changes = {
            name: value
            for name in protocol.LimitChanges.__struct_fields__
            if (value := getattr(message.limits, name)) is not None
        }
        limits = replace(self._limits, **changes)
        if limits.max_model_len > self._context_length:
            raise LimitError(
                f"max_model_len is {limits.max_model_len}, but the model's context has "
                f"{self._context_length} tokens"
            )
        return Configuration(
            revision=message.revision,
            limits=within_cache(limits, self._kv_cache),
            weights=dict(message.weights),
            guardrail_mode=Mode(message.guardrails.mode.value),
            guardrail_level=message.guardrails.level,
        )
