"""What gateways know of engines, put into the store without any engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.protocol import Configure, GuardrailEvent, Guardrails
from gateway.db import Database
from gateway.engine_config import queries
from tests.builders.engine_messages import engine_limits, engine_status
from tests.fakes.websocket_engine import WebSocketEngine


async def meet_engine(
    database: Database, *, instance: str = "life-1", address: str = "ws://engine:1", **status: Any
) -> None:
    """An engine said this of itself just now."""
    async with database.system_transaction() as connection:
        await queries.note_in_force(
            connection, engine_status(instance=instance, **status), instance=instance, address=address
        )


def guardrail_event(number: int, **changes: Any) -> GuardrailEvent:
    """One move up the ladder."""
    values: dict[str, Any] = {
        "number": number,
        "at": 1_800_000_000.0 + number,
        "from_level": 0,
        "to_level": 1,
        "measure": "ttft_p95_ms",
        "value": 1800.0,
        "target": 1500.0,
        "detail": "Offline work is paused.",
    }
    return GuardrailEvent(**values | changes)


def obey(engine: WebSocketEngine, configuration: Configure) -> None:
    """Says at once that a configuration is in force."""
    tell(engine, configuration)


def tell(
    engine: WebSocketEngine,
    configuration: Configure,
    *,
    instance: str = "life-1",
    events: Sequence[GuardrailEvent] = (),
    **changes: Any,
) -> None:
    """Sends a status of an engine that has this configuration in force."""
    limits: Mapping[str, Any] = {
        key: value
        for key in configuration.limits.__struct_fields__
        if (value := getattr(configuration.limits, key)) is not None
    }
    orders = configuration.guardrails
    status: dict[str, Any] = {
        "instance": instance,
        "config_revision": configuration.revision,
        "limits": engine_limits(**limits),
        "guardrails": Guardrails(mode=orders.mode, level=orders.level, events=tuple(events)),
    }
    engine.send_message(engine_status(**status | changes))
