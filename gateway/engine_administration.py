"""What operators may order of engines while they run: each order and its audit row in one transaction.

An order is a row of the store; gateways carry it to the engines (`gateway/config_follower.py`). It knows no
connection to an engine. Raises AdministrationError with a line for the operator, or StoreUnavailable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import GuardrailMode, GuardrailOrders, LimitChanges
from gateway.audit import queries as audit
from gateway.db import Database
from gateway.engine_config import queries
from gateway.engine_config.changes import Value, changed_limits, changed_orders, refuse_contradiction
from gateway.engine_config.values import (
    Desired,
    EngineInForce,
    EngineSnapshot,
    StoredGuardrailEvent,
    worth_showing,
)
from gateway.tenants import queries as tenants
from gateway.tenants.errors import NoSuchThing
from gateway.tenants.lookup import tenant_called
from gateway.tenants.tenant import Tenant
from gateway.tenants.weight import check_weight


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is wanted of a model's engines beside what each of them has in force."""

    desired: Desired
    engines: tuple[EngineInForce, ...]


@dataclass(frozen=True, kw_only=True)
class Ordered:
    """One model's configuration before and after an order; equal when the order changed nothing."""

    before: Desired
    after: Desired


async def show_scheduler(database: Database, model: str | None = None) -> Sequence[ModelConfig]:
    """Every model that was ever served, or one. Raises NoSuchThing for a model that never was."""
    async with database.system_transaction() as connection:
        wanted = await _models(connection, model)
        engines = worth_showing(await queries.engines(connection))
    return [
        ModelConfig(
            desired=desired,
            engines=tuple(engine for engine in engines if engine.model == desired.model),
        )
        for desired in wanted
    ]


async def set_scheduler(
    database: Database, actor: str, model: str | None, changes: Mapping[str, Value]
) -> Sequence[Ordered]:
    """Changes limits of a model's engines, or of all models'; None gives a limit back to the engine's own.

    Values may be given as text. Raises BadValue, naming the key, and NoSuchThing.
    """
    async with database.system_transaction() as connection:
        rows = await _models(connection, model, for_update=True)
        engines = [engine for engine in await queries.engines(connection) if not engine.is_silent]
        ordered = []
        for before in rows:
            limits = changed_limits(before.limits, changes)
            of_model = [engine for engine in engines if engine.model == before.model]
            refuse_contradiction(old=before.limits, new=limits, engines=of_model)
            ordered.append(await _order(connection, actor, "scheduler.set", before, limits=limits))
    return ordered


async def set_guardrails(
    database: Database,
    actor: str,
    model: str | None,
    *,
    mode: GuardrailMode | None = None,
    level: int | None = None,
) -> Sequence[Ordered]:
    """Changes who moves the guardrails, or in manual mode to which level. Raises BadValue and NoSuchThing."""
    async with database.system_transaction() as connection:
        return [
            await _order(
                connection,
                actor,
                "guardrails.set",
                before,
                guardrails=changed_orders(before.guardrails, mode=mode, level=level),
            )
            for before in await _models(connection, model, for_update=True)
        ]


async def set_weight(database: Database, actor: str, tenant_name_or_id: str, weight: float) -> Tenant:
    """Changes a tenant's share, for what it sends from now on and for what engines already have of it."""
    check_weight(weight)
    async with database.system_transaction() as connection:
        tenant = await tenant_called(connection, tenant_name_or_id, for_update=True)
        if tenant.weight == weight:
            return tenant
        changed = await tenants.set_weight(connection, tenant.id, weight)
        for before in await queries.desired_of_all(connection, for_update=True):
            await queries.save(
                connection,
                before.model,
                limits=before.limits,
                weights={**before.weights, tenant.id: weight},
                guardrails=before.guardrails,
            )
        await audit.record(
            connection,
            actor=actor,
            action="tenant.set_weight",
            subject=tenant.id,
            before={"weight": tenant.weight},
            after={"weight": weight},
        )
    return changed


async def guardrail_events(
    database: Database, *, limit: int = 50, since: datetime | None = None
) -> Sequence[StoredGuardrailEvent]:
    """The latest moves of all engines' guardrails, newest first."""
    async with database.system_transaction() as connection:
        return await queries.events(connection, limit=limit, since=since)


async def engine_history(database: Database, *, since: datetime) -> Sequence[EngineSnapshot]:
    """The engines' figures every 10 seconds from a moment on, oldest first."""
    async with database.system_transaction() as connection:
        return await queries.snapshots(connection, since=since)


async def _models(
    connection: AsyncConnection, model: str | None, *, for_update: bool = False
) -> list[Desired]:
    rows = await queries.desired_of_all(connection, for_update=for_update)
    if model is None:
        if not rows:
            raise NoSuchThing("No engine has been connected to this installation's gateways yet.")
        return rows
    wanted = [row for row in rows if row.model == model]
    if not wanted:
        known = ", ".join(row.model for row in rows) or "none"
        raise NoSuchThing(f"No engine has served a model called {model!r}; known: {known}.")
    return wanted


async def _order(
    connection: AsyncConnection,
    actor: str,
    action: str,
    before: Desired,
    *,
    limits: LimitChanges | None = None,
    guardrails: GuardrailOrders | None = None,
) -> Ordered:
    limits, guardrails = limits or before.limits, guardrails or before.guardrails
    if (limits, guardrails) == (before.limits, before.guardrails):
        return Ordered(before=before, after=before)
    after = await queries.save(
        connection, before.model, limits=limits, weights=before.weights, guardrails=guardrails
    )
    old, new = facts_of(before), facts_of(after)
    changed = [name for name in new if old[name] != new[name]]
    await audit.record(
        connection,
        actor=actor,
        action=action,
        subject=before.model,
        before={name: old[name] for name in changed},
        after={name: new[name] for name in changed},
    )
    return Ordered(before=before, after=after)


def facts_of(desired: Desired) -> dict[str, Any]:
    """Everything that an order may change, by name; None is the engine's own."""
    limits = {key: getattr(desired.limits, key) for key in LimitChanges.__struct_fields__}
    orders = desired.guardrails
    return {
        "revision": desired.revision,
        **limits,
        "guardrail_mode": orders.mode.value,
        "guardrail_level": orders.level,
    }
