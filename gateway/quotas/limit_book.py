"""Every tenant's limits as the store has them: asked once, then followed. No SQL on a request's way."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy.exc import DBAPIError

from engine.protocol import RequestClass
from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.logs import Trouble
from gateway.quotas import queries
from gateway.quotas.limits import LimitId, QuotaLimit
from gateway.rhythm import Rhythm
from gateway.tenants.ids import KeyId, ProjectId, TenantId

POLL_SECONDS: Final = 0.5
OVERLAP_SECONDS: Final = 20.0  # longer than any transaction may take, so no change commits unseen
MAX_UNSEEN_SECONDS: Final = 600.0  # how long known limits go on while the store is away

logger = logging.getLogger(__name__)


class Payer(msgspec.Struct, frozen=True):
    """Whose limits a request counts against, and for what."""

    tenant: TenantId
    project: ProjectId
    key: KeyId
    model: str
    request_class: RequestClass


class LimitBook:
    """The limits of the tenants that this process has served. `on_change` gets all that are known now."""

    def __init__(
        self, database: Database, *, on_change: Callable[[Mapping[LimitId, QuotaLimit]], None]
    ) -> None:
        self._database = database
        self._on_change = on_change
        self._by_tenant: dict[TenantId, tuple[QuotaLimit, ...]] = {}
        self._by_payer: dict[Payer, tuple[QuotaLimit, ...]] = {}
        self._look_ups: dict[TenantId, asyncio.Task[None]] = {}
        self._changes_until: datetime | None = None  # store's clock
        self._polled_at = time.monotonic()
        self._following: asyncio.Task[None] | None = None
        self._rhythm = Rhythm()
        self._trouble = Trouble(logger, "changes of limits are not seen")

    async def start(self) -> None:
        """Begins to follow changes."""
        self._polled_at = time.monotonic()
        self._following = asyncio.create_task(self._follow(), name="limits")

    async def stop(self) -> None:
        """Stops following."""
        self._rhythm.stop()
        if self._following is not None:
            await asyncio.wait({self._following})

    async def limits_for(self, payer: Payer) -> tuple[QuotaLimit, ...]:
        """All limits that a request of this payer counts against. Raises StoreUnavailable."""
        is_stale = time.monotonic() - self._polled_at >= MAX_UNSEEN_SECONDS
        known = self._by_payer.get(payer)
        if known is not None and not is_stale:
            return known
        if is_stale or payer.tenant not in self._by_tenant:
            await asyncio.shield(self._looked_up(payer.tenant))
        limits = tuple(limit for limit in self._by_tenant[payer.tenant] if _counts(limit, payer))
        self._by_payer[payer] = limits
        return limits

    def _looked_up(self, tenant: TenantId) -> asyncio.Task[None]:
        """One statement for all who ask meanwhile: hundreds of a batch's lines begin at once."""
        if tenant not in self._look_ups:
            task = self._look_ups[tenant] = asyncio.create_task(self._look_up(tenant))
            task.add_done_callback(lambda _: self._look_ups.pop(tenant))
        return self._look_ups[tenant]

    async def _look_up(self, tenant: TenantId) -> None:
        try:
            async with self._database.tenant_transaction(tenant) as connection:
                self._by_tenant[tenant] = tuple(await queries.limits_of(connection, tenant))
        except DBAPIError as error:  # the store is there and refuses: nobody is let in unmetered
            logger.exception("limits cannot be looked up")
            raise StoreUnavailable("The request could not be counted right now.") from error

    async def _follow(self) -> None:
        async for _ in self._rhythm.turns(POLL_SECONDS):
            try:
                await self._poll()
            except Exception as error:  # following must not end because one poll did
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
            else:
                self._trouble.end()

    async def _poll(self) -> None:
        async with self._database.system_transaction() as connection:
            changed, now = await queries.changed_since(
                connection, self._changes_until, overlap_seconds=OVERLAP_SECONDS
            )
            stale = changed & self._by_tenant.keys()
            limits = {tenant: tuple(await queries.limits_of(connection, tenant)) for tenant in stale}
        self._polled_at = time.monotonic()
        self._changes_until = now
        if any(self._by_tenant.get(tenant) != found for tenant, found in limits.items()):
            self._by_tenant.update(limits)
            self._by_payer.clear()
            self._on_change({limit.id: limit for found in self._by_tenant.values() for limit in found})


def _counts(limit: QuotaLimit, payer: Payer) -> bool:
    return limit.scope_id in (payer.tenant, payer.project, payer.key) and limit.counts(
        model=payer.model, request_class=payer.request_class
    )
