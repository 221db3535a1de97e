"""All SQL of engines' configuration and history. Times are the store's clock, but for events' own."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from sqlalchemy import RowMapping, delete, func, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import (
    EngineLimits,
    EngineStatus,
    GuardrailEvent,
    GuardrailMode,
    GuardrailOrders,
    LimitChanges,
)
from gateway.engine_config.changes import LIMIT_KEYS, builtins
from gateway.engine_config.figures import figures_of
from gateway.engine_config.tables import engine_config, engine_instance, engine_snapshot, guardrail_event
from gateway.engine_config.values import Desired, EngineInForce, EngineSnapshot, StoredGuardrailEvent

SNAPSHOT_INTERVAL: Final = func.make_interval(0, 0, 0, 0, 0, 0, 10)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SNAPSHOT_DAYS: Final = 7
EVENT_DAYS: Final = 90
INSTANCE_DAYS: Final = 1
MAX_FORGOTTEN_ROWS: Final = 1_000  # in one statement, so that it never takes long


# --- what is desired ---------------------------------------------------------------------------------------


async def desired_of_all(connection: AsyncConnection, *, for_update: bool = False) -> list[Desired]:
    """Every model that was ever served, by name; locked in that order if asked for."""
    found = select(engine_config).order_by(engine_config.c.model)
    rows = await connection.execute(found.with_for_update() if for_update else found)
    return [_desired(row) for row in rows.mappings()]


async def newer_than(connection: AsyncConnection, known: Mapping[str, int]) -> list[Desired]:
    """What has a higher revision than the `known` one of its model, or than 0."""
    is_newer = text("revision > coalesce((CAST(:known AS jsonb) ->> model)::bigint, 0)")
    rows = await connection.execute(
        select(engine_config).where(is_newer), {"known": msgspec.json.encode(known).decode()}
    )
    return [_desired(row) for row in rows.mappings()]


async def save(
    connection: AsyncConnection,
    model: str,
    *,
    limits: LimitChanges,
    weights: Mapping[str, float],
    guardrails: GuardrailOrders,
) -> Desired:
    """Writes a model's row, which is locked, under the next revision."""
    rows = await connection.execute(
        update(engine_config)
        .where(engine_config.c.model == model)
        .values(
            revision=1 + func.greatest(engine_config.c.revision, _highest_revision_said(model)),
            limits=builtins(limits),
            weights=dict(weights),
            guardrails=builtins(guardrails),
            updated_at=func.now(),
        )
        .returning(engine_config)
    )
    return _desired(rows.mappings().one())


def _highest_revision_said(model: str) -> Any:
    return (
        select(func.coalesce(func.max(engine_instance.c.config_revision), 0))
        .where(engine_instance.c.model == model)
        .scalar_subquery()
    )


# --- what is in force --------------------------------------------------------------------------------------


async def engines(connection: AsyncConnection) -> list[EngineInForce]:
    """Every life of an engine that is remembered."""
    rows = await connection.execute(
        select(
            engine_instance,
            func.extract("epoch", func.clock_timestamp() - engine_instance.c.seen_at).label("age_seconds"),
        )
    )
    return [_in_force(row) for row in rows.mappings()]


async def note_in_force(
    connection: AsyncConnection, status: EngineStatus, *, instance: str, address: str
) -> None:
    """Stores what an engine has in force; a revision never goes back. Its model gets a row if it has none."""
    await connection.execute(
        insert(engine_config).values(model=status.model, revision=0).on_conflict_do_nothing()
    )
    facts = {
        "address": address,
        "model": status.model,
        "config_revision": status.config_revision,
        "config_error": status.config_error,
        "limits": builtins(status.limits),
        "guardrail_mode": status.guardrails.mode.value,
        "guardrail_level": status.guardrails.level,
    }
    statement = insert(engine_instance).values(instance=instance, **facts)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=[engine_instance.c.instance],
            set_={**facts, "seen_at": func.now()},
            where=engine_instance.c.config_revision <= statement.excluded.config_revision,
        )
    )


async def forget_instance(connection: AsyncConnection, instance: str) -> None:
    """That life of an engine is over."""
    await connection.execute(delete(engine_instance).where(engine_instance.c.instance == instance))


# --- history -----------------------------------------------------------------------------------------------


async def add_snapshot(
    connection: AsyncConnection, status: EngineStatus, *, instance: str, address: str
) -> None:
    """Stores an engine's figures, unless somebody has for these 10 seconds."""
    await connection.execute(
        insert(engine_snapshot)
        .values(
            instance=instance,
            at=func.date_bin(SNAPSHOT_INTERVAL, func.now(), EPOCH),
            address=address,
            model=status.model,
            figures=figures_of(status),
        )
        .on_conflict_do_nothing()
    )


async def add_events(
    connection: AsyncConnection,
    events: Sequence[GuardrailEvent],
    *,
    instance: str,
    address: str,
    model: str,
) -> None:
    """Stores the events that are not stored yet."""
    await connection.execute(
        insert(guardrail_event)
        .values(
            [
                {
                    **msgspec.structs.asdict(event),
                    "at": datetime.fromtimestamp(event.at, UTC),
                    "instance": instance,
                    "address": address,
                    "model": model,
                }
                for event in events
            ]
        )
        .on_conflict_do_nothing()
    )


async def events(
    connection: AsyncConnection, *, limit: int, since: datetime | None
) -> list[StoredGuardrailEvent]:
    """At most `limit` events, newest first."""
    page = select(guardrail_event).order_by(guardrail_event.c.at.desc(), guardrail_event.c.number.desc())
    if since is not None:
        page = page.where(guardrail_event.c.at >= since)
    rows = await connection.execute(page.limit(limit))
    return [StoredGuardrailEvent(**row) for row in rows.mappings()]


async def snapshots(
    connection: AsyncConnection, *, since: datetime, limit: int = 10_000
) -> list[EngineSnapshot]:
    """The figures of all engines from a moment on, oldest first; the newest `limit` of them."""
    newest = (
        select(engine_snapshot)
        .where(engine_snapshot.c.at >= since)
        .order_by(engine_snapshot.c.at.desc(), engine_snapshot.c.instance)
        .limit(limit)
    )
    rows = await connection.execute(newest)
    return [EngineSnapshot(**row) for row in reversed(rows.mappings().all())]


async def forget_old(connection: AsyncConnection) -> None:
    """Deletes some of what is older than it is kept; of several that do so at once, each takes other rows."""
    for table, moment, num_days in (
        (engine_snapshot, engine_snapshot.c.at, SNAPSHOT_DAYS),
        (guardrail_event, guardrail_event.c.at, EVENT_DAYS),
        (engine_instance, engine_instance.c.seen_at, INSTANCE_DAYS),
    ):
        key = tuple_(*table.primary_key.columns)
        old = (
            select(*table.primary_key.columns)
            .where(moment < func.now() - func.make_interval(0, 0, 0, num_days))
            .limit(MAX_FORGOTTEN_ROWS)
            .with_for_update(skip_locked=True)
        )
        await connection.execute(delete(table).where(key.in_(old)))


def _desired(row: RowMapping) -> Desired:
    return Desired(
        model=row["model"],
        revision=row["revision"],
        limits=msgspec.convert(
            {key: value for key, value in row["limits"].items() if key in LIMIT_KEYS},  # a newer version's
            LimitChanges,
        ),
        weights=row["weights"],
        guardrails=msgspec.convert(row["guardrails"], GuardrailOrders),
        updated_at=row["updated_at"],
    )


def _in_force(row: RowMapping) -> EngineInForce:
    return EngineInForce(
        instance=row["instance"],
        address=row["address"],
        model=row["model"],
        config_revision=row["config_revision"],
        config_error=row["config_error"],
        limits=msgspec.convert(row["limits"], EngineLimits),
        guardrail_mode=GuardrailMode(row["guardrail_mode"]),
        guardrail_level=row["guardrail_level"],
        age_seconds=float(row["age_seconds"]),
    )
