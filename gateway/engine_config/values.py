"""Rows of this slice as values. Frozen; nothing here acts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from engine.protocol import Configure, EngineLimits, GuardrailMode, GuardrailOrders, LimitChanges

SILENT_AFTER_SECONDS: Final = 15.0  # what an engine has in force is stored every 10


@dataclass(frozen=True, kw_only=True)
class Desired:
    """What operators want of every engine of a model. Revision 0: nothing was ever changed."""

    model: str
    revision: int
    limits: LimitChanges
    weights: Mapping[str, float]
    guardrails: GuardrailOrders
    updated_at: datetime

    @property
    def message(self) -> Configure:
        """How an engine is told."""
        return Configure(
            revision=self.revision,
            limits=self.limits,
            weights=dict(self.weights),
            guardrails=self.guardrails,
        )


@dataclass(frozen=True, kw_only=True)
class EngineInForce:
    """What one life of an engine last said that it has in force, `age_seconds` ago."""

    instance: str
    address: str
    model: str
    config_revision: int
    config_error: str | None
    limits: EngineLimits
    guardrail_mode: GuardrailMode
    guardrail_level: int
    age_seconds: float

    @property
    def is_silent(self) -> bool:
        """Whether it is no longer there, or cannot be heard."""
        return self.age_seconds > SILENT_AFTER_SECONDS


@dataclass(frozen=True, kw_only=True)
class StoredGuardrailEvent:
    """One move of an engine's guardrails. `measure` is empty when an operator moved them."""

    instance: str
    number: int
    address: str
    model: str
    at: datetime
    from_level: int
    to_level: int
    measure: str
    value: float | None
    target: float | None
    detail: str
    is_dry_run: bool


@dataclass(frozen=True, kw_only=True)
class EngineSnapshot:
    """An engine's figures of the 10 seconds that begin `at` (`figures.py` says which)."""

    instance: str
    at: datetime
    address: str
    model: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def worth_showing(engines: list[EngineInForce]) -> list[EngineInForce]:
    """Those that speak; of a silent address the last life only, and only when nobody else speaks there."""
    newest_first = sorted(engines, key=lambda engine: engine.age_seconds)
    shown: list[EngineInForce] = []
    for engine in newest_first:
        if not engine.is_silent or all(engine.address != other.address for other in shown):
            shown.append(engine)
    return sorted(shown, key=lambda engine: (engine.model, engine.address, engine.instance))
