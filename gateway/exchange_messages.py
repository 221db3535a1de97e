"""What one exchange tells the store and hears from it, and the requests that wait for its answer.

It decides nothing, and asks nobody.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.batches.results import ItemResult
from gateway.quotas import policy
from gateway.quotas.policy import Ask, Bucket, BucketId, Granted, Return
from gateway.quotas.queries import LockedBucket
from gateway.quotas.refusals import Shortage
from gateway.quotas.wallet import Hold, Wallet, Want
from gateway.tenants.ids import TenantId
from gateway.usage.queries import UsageEvent


@dataclass(eq=False, kw_only=True)
class Waiting:
    """A request that waits for credit: a new one (`want`), or a live one that wants more output (`hold`)."""

    want: Want
    hold: Hold | None
    until: float
    answer: "asyncio.Future[Hold | Shortage]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def has_left(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.answer.done() or (self.hold is not None and self.hold.is_over)

    def ask(self, wallet: Wallet, *, now: float) -> Ask | None:
        """What it asks of the store; None while the store has to open a bucket for it."""
        if self.hold is None:
            return wallet.ask(self.want, now=now)
        return wallet.ask_more(self.hold, self.want.output_cap)

    def grant(self, wallet: Wallet, ask: Ask, granted: Granted) -> None:
        """It gets what it asked for, at least as much as it can do with."""
        hold = self.hold
        if hold is None:
            hold = wallet.hold(ask, granted)
        else:
            wallet.add(hold, ask, granted)
        self.answer.set_result(hold)


class EndedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A batch's item that has ended here. What it holds is let go in the exchange that tells its result.

    Without a `hold` and an `event` nothing was reserved for it, and nothing used.
    `share_error` is by how much its tenant's share of batches was charged too little when it was claimed.
    """

    tenant: TenantId
    result: ItemResult
    event: UsageEvent | None
    hold: Hold | None
    share_error: float


class ToldItem(msgspec.Struct, frozen=True):
    """An ended item, and what it spent of each bucket: taken back should its lease turn out to be lost."""

    ended: EndedItem
    spent: Mapping[BucketId, float]


@dataclass(kw_only=True)
class Message:
    """What one exchange tells; told again as it is until it has arrived."""

    number: int
    returns: dict[BucketId, Return]
    events: list[UsageEvent]
    items: list[ToldItem]
    num_live: dict[TenantId, int]


@dataclass(frozen=True)
class Heard:
    """What of a message counts."""

    events: list[UsageEvent]
    returns: dict[BucketId, Return]
    shares: dict[TenantId, float]


@dataclass(kw_only=True)
class Answer:
    """What the store said: whether it had heard the message before, and where the buckets stand."""

    was_known: bool
    granted: dict[BucketId, float]
    buckets: dict[BucketId, Bucket]
    wanted: set[BucketId]
    asked: list[tuple[Waiting, Ask]]
    decisions: Sequence[policy.Decision]


def unspent(
    returns: Mapping[BucketId, Return], lost: Iterable[Mapping[BucketId, float]]
) -> dict[BucketId, Return]:
    """The same returns, but that what was lost was not spent."""
    after = dict(returns)
    for parts in lost:
        for bucket, amount in parts.items():
            told = after[bucket]
            after[bucket] = Return(spent=told.spent - amount, given=told.given + amount)
    return after


def known(locked: Mapping[BucketId, LockedBucket]) -> Answer:
    """To a message that took effect before: where the buckets stand, and nothing is decided again."""
    granted = {bucket: one.granted for bucket, one in locked.items()}
    return Answer(was_known=True, granted=granted, buckets={}, wanted=set(), asked=[], decisions=())
