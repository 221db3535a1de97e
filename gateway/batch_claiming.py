"""One look at the store for a worker: what it gives back, what it must stop, and the lines that it gets.

All in one transaction; the lines are read from their file after it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batch_item import ENDPOINTS, Job
from gateway.batches import claims
from gateway.batches.claims import Claimable, ClaimedItem, GivenBack
from gateway.batches.ids import BatchId
from gateway.batches.policy import share_out
from gateway.db import Database
from gateway.errors import FileStoreUnavailable
from gateway.files.store import BlobMissing, FileStore
from gateway.keys import queries as keys
from gateway.keys.caller import Caller
from gateway.keys.queries import KeyRecord
from gateway.keys.scope import Scope
from gateway.keys.service import caller_of
from gateway.tenants.ids import TenantId

logger = logging.getLogger(__name__)

UNREADABLE_SECONDS: Final = 30.0  # until lines are claimed again whose file could not be read


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a worker tells and asks: lines for models, so many of each; nothing of the batches passed over."""

    room: Mapping[str, int]
    passed_over: Collection[BatchId] = ()
    given_back: Sequence[GivenBack] = ()
    held: Collection[BatchId] = ()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What it gets. `stopped`: batches of which nothing more is begun; true where what runs ends as well.

    `barred` are batches of which nothing can be run now: because of their key, or for want of their file.
    """

    jobs: Sequence[Job]
    unreadable: Sequence[GivenBack]
    barred: frozenset[BatchId]
    stopped: Mapping[BatchId, bool]


@dataclass(frozen=True, kw_only=True)
class _Claimed:
    """Lines of one batch, just leased."""

    batch: Claimable
    caller: Caller
    items: list[ClaimedItem]

    @property
    def share(self) -> float:
        """What its tenant's share is charged for each of them, until more is known."""
        return self.batch.candidate.tokens_per_item / self.batch.candidate.weight


@dataclass
class _Found:
    """What a turn comes to, bit by bit."""

    claimed: list[_Claimed] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    unreadable: list[GivenBack] = field(default_factory=list)
    barred: set[BatchId] = field(default_factory=set)


class BatchClaiming:
    """Claims for the life that `epoch` names."""

    def __init__(self, database: Database, files: FileStore, *, epoch: Callable[[], int]) -> None:
        self._database = database
        self._files = files
        self._epoch = epoch

    async def turn(self, wish: Wish) -> Turn:
        """One look. After any error some lines may be leased that nobody knows of (`leased`)."""
        found = _Found()
        async with self._database.system_transaction() as connection:
            await self._give_back(connection, wish.given_back)
            stopped = await claims.stopped_among(connection, wish.held) if wish.held else {}
            for model, num in wish.room.items():
                if num > 0:
                    await self._claim(connection, model, num, wish, found)
            if found.claimed:
                await claims.charge_shares(connection, _shares(found.claimed))
        for claimed in found.claimed:
            await self._read(claimed, found)
        return Turn(
            jobs=found.jobs,
            unreadable=found.unreadable,
            barred=frozenset(found.barred),
            stopped=stopped,
        )

    async def give_back(self, given: Sequence[GivenBack]) -> None:
        """Gives lines back, and asks for none. Raises StoreUnavailable."""
        async with self._database.system_transaction() as connection:
            await self._give_back(connection, given)

    async def leased(self) -> list[GivenBack]:
        """All that is leased to this life, ready to be given back. Raises StoreUnavailable."""
        async with self._database.system_transaction() as connection:
            return await claims.leased_to(connection, epoch=self._epoch())

    async def _give_back(self, connection: AsyncConnection, given: Sequence[GivenBack]) -> None:
        if given:
            await claims.give_back(connection, given, epoch=self._epoch())

    async def _claim(
        self, connection: AsyncConnection, model: str, num: int, wish: Wish, found: _Found
    ) -> None:
        batches = await claims.claimable(connection, models=[model], passed_over=wish.passed_over)
        callers = await _callers(connection, batches)
        found.barred |= {batch.id for batch in batches} - callers.keys()
        allowed = [batch for batch in batches if batch.id in callers]
        nums = share_out([batch.candidate for batch in allowed], room=num)
        for batch in allowed:
            if nums[batch.tenant]:
                items = await claims.claim(connection, batch.id, num=nums[batch.tenant], epoch=self._epoch())
                found.claimed.append(_Claimed(batch=batch, caller=callers[batch.id], items=items))

    async def _read(self, claimed: _Claimed, found: _Found) -> None:
        slices = [(item.first_byte, item.num_bytes) for item in claimed.items]
        try:
            lines = await asyncio.to_thread(self._files.read_slices, claimed.batch.input_blob, slices)
        except (BlobMissing, FileStoreUnavailable) as error:
            logger.error("the input file of %s cannot be read: %s", claimed.batch.id, error)
            found.barred.add(claimed.batch.id)
            found.unreadable += [_unreadable(item, claimed) for item in claimed.items]
            return
        endpoint = ENDPOINTS[claimed.batch.endpoint]
        found.jobs += [
            Job(
                item=item,
                model=claimed.batch.model,
                endpoint=endpoint,
                caller=claimed.caller,
                line=line,
                share=claimed.share,
            )
            for item, line in zip(claimed.items, lines, strict=True)
        ]


async def _callers(connection: AsyncConnection, batches: Sequence[Claimable]) -> dict[BatchId, Caller]:
    """On whose behalf each batch runs; those whose key may not have batches run are absent."""
    if not batches:
        return {}
    records = await keys.records(connection, {batch.key for batch in batches})
    return {
        batch.id: caller_of(record)
        for batch in batches
        if (record := records.get(batch.key)) is not None and _may_run(record)
    }


def _may_run(record: KeyRecord) -> bool:
    return not (record.revoked or record.tenant_disabled) and Scope.BATCH in record.scopes


def _shares(claimed: Sequence[_Claimed]) -> dict[TenantId, float]:
    shares: dict[TenantId, float] = {}
    for one in claimed:
        shares[one.batch.tenant] = shares.get(one.batch.tenant, 0.0) + one.share * len(one.items)
    return shares


def _unreadable(item: ClaimedItem, claimed: _Claimed) -> GivenBack:
    return GivenBack(
        tenant=claimed.batch.tenant,
        batch=item.batch,
        line=item.line,
        attempt=item.attempt,
        after_seconds=UNREADABLE_SECONDS,
        counts=False,
        share=claimed.share,
    )
