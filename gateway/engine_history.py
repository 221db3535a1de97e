"""Stores what engines say of themselves: what they have in force, their guardrails' moves, their figures.

It reads the last status of each connection, in its own time and never on a request's way. Many gateways do
so about one engine; the store's keys see to it that each thing is stored once (`gateway/engine_config`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from engine.protocol import EngineLimits, EngineStatus, GuardrailMode
from gateway.db import Database
from gateway.engine_config import queries
from gateway.engines.client import EngineAddress
from gateway.errors import StoreUnavailable
from gateway.logs import Trouble

TICK_SECONDS: Final = 0.5
WRITE_EVERY_SECONDS: Final = 10.0
FORGET_EVERY_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


class HeardEngine(Protocol):
    """What is read of a connection to an engine (`gateway.engines.client.EngineClient`)."""

    @property
    def address(self) -> EngineAddress:
        """Where the engine listens."""

    @property
    def status(self) -> EngineStatus | None:
        """The newest status, a new object each time one comes; None while it is not connected."""


@dataclass(frozen=True, kw_only=True)
class InForce:
    """What must be stored as soon as it differs."""

    instance: str
    config_revision: int
    config_error: str | None
    limits: EngineLimits
    mode: GuardrailMode
    level: int


@dataclass(frozen=True, kw_only=True)
class Written:
    """What this process has stored about the engine at an address. `at` is the loop's time."""

    in_force: InForce
    status: EngineStatus
    at: float
    last_event: int


class EngineHistory:
    """One per gateway process. `clients` is asked each time: engines come and go."""

    def __init__(self, database: Database, clients: Callable[[], Sequence[HeardEngine]]) -> None:
        self._database = database
        self._clients = clients
        self._written: dict[EngineAddress, Written] = {}
        self._forgot_at = float("-inf")
        self._writing: asyncio.Task[None] | None = None
        self._trouble = Trouble(logger, "what engines say is not stored")

    async def start(self) -> None:
        """Begins to store."""
        self._writing = asyncio.create_task(self._write_for_ever(), name="history of engines")

    async def stop(self) -> None:
        """Stops storing."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})

    async def write(self, now: float) -> None:
        """Stores what is due at `now`, in the loop's time. When the store raises, it is due again."""
        clients = self._clients()
        for client in clients:
            if client.status is not None:
                await self._write_engine(client.address, client.status, now)
        addresses = {client.address for client in clients}
        self._written = {at: written for at, written in self._written.items() if at in addresses}
        if now - self._forgot_at >= FORGET_EVERY_SECONDS:
            async with self._database.system_transaction() as connection:
                await queries.forget_old(connection)
            self._forgot_at = now

    async def _write_for_ever(self) -> None:
        while True:
            try:
                await self.write(asyncio.get_running_loop().time())
            except Exception as error:  # the next round tries again
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
            else:
                self._trouble.end()
            await asyncio.sleep(TICK_SECONDS)

    async def _write_engine(self, address: EngineAddress, status: EngineStatus, now: float) -> None:
        """Stores what is due of one engine, if anything is."""
        in_force = _in_force(address, status)
        before = self._written.get(address)
        is_due = before is None or (now - before.at >= WRITE_EVERY_SECONDS and status is not before.status)
        is_new_life = before is None or before.in_force.instance != in_force.instance
        last_event = -1 if before is None or is_new_life else before.last_event
        events = [event for event in status.guardrails.events if event.number > last_event]
        if not is_due and before is not None and before.in_force == in_force and not events:
            return
        who = {"instance": in_force.instance, "address": address.name}
        async with self._database.system_transaction() as connection:
            await queries.note_in_force(connection, status, **who)
            if events:
                await queries.add_events(connection, events, model=status.model, **who)
            if is_due:
                await queries.add_snapshot(connection, status, **who)
            if before is not None and is_new_life:
                await queries.forget_instance(connection, before.in_force.instance)
        self._written[address] = Written(
            in_force=in_force,
            status=status,
            at=now if before is None or is_due else before.at,
            last_event=max([last_event, *(event.number for event in events)]),
        )


def _in_force(address: EngineAddress, status: EngineStatus) -> InForce:
    return InForce(
        instance=status.instance or address.name,  # an older engine does not name its life
        config_revision=status.config_revision,
        config_error=status.config_error,
        limits=status.limits,
        mode=status.guardrails.mode,
        level=status.guardrails.level,
    )
