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
from gateway.keys.scope import Scope
from gateway.keys.service import caller_of
from gateway.tenants.ids import KeyId, TenantId

ItemKey = tuple[BatchId, int]

logger = logging.getLogger(__name__)

UNREADABLE_SECONDS: Final = 10.0  # until lines are claimed again whose file could not be read


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a worker tells and asks: lines for models, so many of each; nothing of the tenants passed over."""

    room: Mapping[str, int]
    passed_over: Collection[TenantId] = ()
    given_back: Sequence[GivenBack] = ()
    held: Collection[BatchId] = ()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What it gets. `stopped`: batches of which nothing more is begun; true where what runs ends as well."""

    jobs: Sequence[Job]
    unreadable: Sequence[GivenBack]
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
class _Read:
    """Lines as they come from their files."""

    jobs: list[Job] = field(default_factory=list)
    unreadable: list[GivenBack] = field(default_factory=list)


class BatchClaiming:
    """Claims for the life that `epoch` names."""

    def __init__(self, database: Database, files: FileStore, *, epoch: Callable[[], int]) -> None:
        self._database = database
        self._files = files
        self._epoch = epoch

    async def turn(self, wish: Wish) -> Turn:
        """One look. After any error some lines may be leased that nobody knows of: `give_back_strays`."""
        async with self._database.system_transaction() as connection:
            await self._give_back(connection, wish.given_back)
            stopped = await claims.stopped_among(connection, wish.held) if wish.held else {}
            claimed = [
                one
                for model, num in wish.room.items()
                for one in await self._claim(connection, model, num, wish)
            ]
            if claimed:
                await claims.charge_shares(connection, _shares(claimed))
        read = _Read()
        for one in claimed:
            await self._read(one, read)
        return Turn(jobs=read.jobs, unreadable=read.unreadable, stopped=stopped)

    async def give_back(self, given: Sequence[GivenBack]) -> None:
        """Gives lines back, and asks for none. Raises StoreUnavailable."""
        async with self._database.system_transaction() as connection:
            await self._give_back(connection, given)

    async def give_back_strays(self, known: Collection[ItemKey]) -> None:
        """Gives back what is leased to this life beside the `known`. Raises StoreUnavailable."""
        async with self._database.system_transaction() as connection:
            leased = await claims.leased_to(connection, epoch=self._epoch())
            await self._give_back(connection, [one for one in leased if (one.batch, one.line) not in known])

    async def _give_back(self, connection: AsyncConnection, given: Sequence[GivenBack]) -> None:
        if given:
            await claims.give_back(connection, given, epoch=self._epoch())

    async def _claim(self, connection: AsyncConnection, model: str, num: int, wish: Wish) -> list[_Claimed]:
        found = (
            await claims.claimable(connection, models=[model], passed_over=wish.passed_over)
            if num > 0
            else []
        )
        callers = {batch.key: await _caller(connection, batch.key) for batch in found}
        allowed = [batch for batch in found if callers[batch.key] is not None]
        nums = share_out([batch.candidate for batch in allowed], room=num)
        claimed = []
        for batch in allowed:
            caller = callers[batch.key]
            if caller is None or not nums[batch.tenant]:
                continue
            items = await claims.claim(connection, batch.id, num=nums[batch.tenant], epoch=self._epoch())
            claimed.append(_Claimed(batch=batch, caller=caller, items=items))
        return claimed

    async def _read(self, claimed: _Claimed, read: _Read) -> None:
        slices = [(item.first_byte, item.num_bytes) for item in claimed.items]
        try:
            lines = await asyncio.to_thread(self._files.read_slices, claimed.batch.input_blob, slices)
        except (BlobMissing, FileStoreUnavailable) as error:
            logger.error("the input file of %s cannot be read: %s", claimed.batch.id, error)
            read.unreadable += [_unreadable(item) for item in claimed.items]
            return
        endpoint = ENDPOINTS[claimed.batch.endpoint]
        read.jobs += [
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


async def _caller(connection: AsyncConnection, key: KeyId) -> Caller | None:
    """On whose behalf a batch runs; None while its key may not have batches run."""
    record = await keys.record(connection, key)
    if record is None or record.revoked or record.tenant_disabled or Scope.BATCH not in record.scopes:
        return None
    return caller_of(record)


def _shares(claimed: Sequence[_Claimed]) -> dict[TenantId, float]:
    shares: dict[TenantId, float] = {}
    for one in claimed:
        shares[one.batch.tenant] = shares.get(one.batch.tenant, 0.0) + one.share * len(one.items)
    return shares


def _unreadable(item: ClaimedItem) -> GivenBack:
    return GivenBack(
        batch=item.batch, line=item.line, attempt=item.attempt, after_seconds=UNREADABLE_SECONDS, counts=False
    )
