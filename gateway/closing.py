"""Closes lives that are over: what a dead gateway process left open is charged, its loans go back.

Until then all of it counts as spent: the dead process may have used it after it last said so. Who knows best
goes first, and what is known better later replaces what was charged before:

    1. the dead one's journal   what had ended, with the engine's own count
    2. the engines' records     what was ended there; each carries its payer's account
    3. the journal again        what was still open and no engine remembers: the most that its client can have
                                got, as was written down before it got it; nothing where nothing was

Exactly once: an event is charged in the transaction that writes it to the ledger, and only there.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestRecord, Usage
from gateway.db import Database
from gateway.engines.directory import LastRecords
from gateway.quotas import account as accounts
from gateway.quotas import policy
from gateway.quotas import queries as quotas
from gateway.quotas.account import Account
from gateway.quotas.limits import Counting
from gateway.quotas.policy import Bucket, BucketId, Return
from gateway.quotas.queries import LockedBucket, SavedBucket
from gateway.usage import queries as ledger
from gateway.usage.journal_format import Replayed
from gateway.usage.outcome import Outcome
from gateway.usage.queries import UsageEvent

EndLife = Callable[[int], Awaitable[LastRecords]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One request that a life left open, as it ended."""

    request_id: str
    account: Account
    usage: Usage
    outcome: Outcome

    @property
    def event(self) -> UsageEvent:
        """For the ledger."""
        return UsageEvent(
            request_id=self.request_id,
            tenant=self.account.tenant,
            project=self.account.project,
            key=self.account.key,
            model=self.account.model,
            request_class=self.account.request_class,
            usage=self.usage,
            outcome=self.outcome,
            admitted_at=self.account.admitted_at,
        )


async def close_life(
    database: Database, epoch: int, end_life: EndLife, journal: Replayed | None = None
) -> bool:
    """Ends what the life runs at the engines, charges it and takes back the rest. Raises StoreUnavailable.

    Whether nothing stays in doubt: while some engine is silent, what may have been used there stays lent;
    slots are free at once.
    """
    last = await end_life(epoch)
    charges = _best_known(
        *(charges_in(journal) if journal is not None else ()),
        *charges_of(last.records),
        *(charges_in_doubt(journal) if journal is not None else ()),
    )
    async with database.system_transaction() as connection:
        await quotas.lock_life(connection, epoch=epoch)  # others may have closed it without the journal
        num_left = await charge(connection, epoch, charges, is_complete=last.is_complete)
        if num_left == 0:
            await quotas.forget_life(connection, epoch=epoch)
    logger.warning(
        "epoch %d is over: %d requests were open or untold, %d buckets stay in doubt",
        epoch,
        len(charges),
        num_left,
    )
    return num_left == 0


async def charge_late(database: Database, epoch: int, journal: Replayed) -> None:
    """Charges what a journal says of a life that is closed already. Raises StoreUnavailable."""
    charges = _best_known(*charges_in(journal), *charges_in_doubt(journal))
    if charges:
        async with database.system_transaction() as connection:
            await charge(connection, epoch, charges, is_complete=True)
        logger.warning("%d requests of epoch %d were in its journal", len(charges), epoch)


async def charge(
    connection: AsyncConnection, epoch: int, charges: Sequence[Charge], *, is_complete: bool
) -> int:
    """Writes the charges to the ledger, and moves credit by what is new there. Of how many buckets the life
    still holds something: without all engines' word only slots are given back.
    """
    leased = await quotas.leased_buckets(connection, epoch=epoch)
    named = {
        bucket for one in charges for bucket in (*one.account.token_buckets, *one.account.request_buckets)
    }
    began = await quotas.now(connection)
    locked = await quotas.lock(connection, [*named, *leased], epoch=epoch, began=began)
    newly = await ledger.record(connection, [one.event for one in charges]) if charges else {}
    spent = _spent(charges, newly)
    saved = [_closed(one, spent[bucket], is_complete=is_complete) for bucket, one in locked.items()]
    if saved:
        await quotas.save(connection, saved, epoch=epoch, now=began.now)
    return sum(one.granted != 0 for one in saved)


def charges_of(records: Sequence[RequestRecord]) -> list[Charge]:
    """What the engines' records say; one without an account is of a gateway that sent none."""
    return [
        Charge(request_id=record.id, account=account, usage=record.usage, outcome=Outcome.LOST)
        for record in records
        if (account := accounts.decode(record.account)) is not None
    ]


def charges_in(journal: Replayed) -> list[Charge]:
    """What had ended."""
    return [
        Charge(request_id=request_id, account=account, usage=closed.usage, outcome=closed.outcome)
        for request_id, (opened, closed) in journal.closed.items()
        if (account := accounts.decode(opened.account)) is not None
    ]


def charges_in_doubt(journal: Replayed) -> list[Charge]:
    """What was open and had begun to reach its client; engines that live know better."""
    return [
        Charge(request_id=request_id, account=account, usage=usage, outcome=Outcome.IN_DOUBT)
        for request_id, opened in journal.open.items()
        if (usage := opened.most_used) is not None
        and (account := accounts.decode(opened.account)) is not None
    ]


def _best_known(*charges: Charge) -> list[Charge]:
    """One for each request: the first."""
    first = {one.request_id: one for one in reversed(charges)}
    return [one for one in charges if first[one.request_id] is one]


def _spent(charges: Sequence[Charge], newly: Mapping[str, int]) -> Counter[BucketId]:
    spent: Counter[BucketId] = Counter()
    for one in charges:
        if one.request_id in newly:
            spent.update(dict.fromkeys(one.account.token_buckets, newly[one.request_id]))
            spent.update(dict.fromkeys(one.account.request_buckets, 1))
    return spent


def _closed(locked: LockedBucket, spent: float, *, is_complete: bool) -> SavedBucket:
    """A bucket with nothing lent to that life; what the life used beyond its loan is owed."""
    bucket = policy.refill(locked.state, elapsed_seconds=locked.elapsed_seconds)
    if locked.granted and not is_complete and bucket.counting is not Counting.SLOTS:
        told = min(spent, locked.granted)
        return _saved(policy.take_back(bucket, Return(spent=told, given=0.0)), locked.granted - told)
    within = min(spent, locked.granted)
    after = policy.take_back(bucket, Return(spent=within, given=locked.granted - within))
    return _saved(replace(after, available=after.available - (spent - within)), 0.0)


def _saved(bucket: Bucket, granted: float) -> SavedBucket:
    return SavedBucket(state=bucket, granted=granted, idle=0.0, wants=False)
