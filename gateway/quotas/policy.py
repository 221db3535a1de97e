"""Decides who gets credit out of the store's buckets. Pure arithmetic: it knows no clock, row or error code.

A bucket stands for one limit. Its credit is either `available` in the store, or `outstanding`: lent to
replicas, each of which admits requests out of what it has been lent and out of nothing else. At all times

    slots, rates   available + outstanding <= capacity            (a rate refills up to that)
    windows        available + outstanding + settled == capacity

so no number of replicas, and no order of events, can use more than the limit: over any span of T seconds a
rate gives at most  capacity + capacity / 60 * T,  a window gives at most its capacity. What a live request
holds does not refill until it has ended: that is the price of never exceeding the limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NewType

import msgspec

from gateway.quotas.limits import Counting, LimitId

BucketId = NewType("BucketId", int)

SECONDS_PER_REFILL: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bucket at one moment, under its lock, as the replica that asks sees it.

    `pool` is what that replica has free of its loan; `idle_elsewhere` what others said they have free.
    """

    id: BucketId
    counting: Counting
    capacity: float
    available: float
    outstanding: float
    pool: float
    idle_elsewhere: float
    num_replicas: int


@dataclass(frozen=True, kw_only=True)
class OpenBucket:
    """The bucket of a limit right now. `seconds_left` None: it has no window."""

    limit: LimitId
    id: BucketId
    seconds_left: float | None


@dataclass(frozen=True, kw_only=True)
class Return:
    """What a replica says of one bucket: `spent` of its loan is used for good, `given` comes back unused."""

    spent: float
    given: float


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What one request wants: one each of `ones`, and as many of `tokens` as its prompt and output have.

    `output_floor` is the least output it can do with, `output_cap` the most.
    """

    ones: tuple[BucketId, ...]
    tokens: tuple[BucketId, ...]
    prompt_tokens: int
    output_cap: int
    output_floor: int

    @property
    def buckets(self) -> tuple[BucketId, ...]:
        """All that it needs something of."""
        return self.ones + self.tokens

    def least(self, bucket: BucketId) -> int:
        """Without as much it cannot run."""
        return self.prompt_tokens + self.output_floor if bucket in self.tokens else 1


class Granted(msgspec.Struct, frozen=True):
    """The request may run and generate so much output."""

    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Short:
    """The request may not run: this bucket has too little. `may_come_back`: others have some of it idle."""

    bucket: BucketId
    requested: int
    remaining: float
    may_come_back: bool


Decision = Granted | Short


@dataclass(frozen=True)
class Settled:
    """Where the buckets stand after an exchange, and the answers to its asks in their order."""

    buckets: Mapping[BucketId, Bucket]
    decisions: Sequence[Decision]


def refill(bucket: Bucket, *, elapsed_seconds: float) -> Bucket:
    """A rate's bucket after `elapsed_seconds` (time that runs backwards counts as none)."""
    if bucket.counting is not Counting.RATE:
        return bucket
    gained = bucket.capacity / SECONDS_PER_REFILL * max(elapsed_seconds, 0.0)
    return replace(bucket, available=min(bucket.available + gained, bucket.capacity - bucket.outstanding))


def resize(bucket: Bucket, capacity: float) -> Bucket:
    """The bucket under a changed limit: what was used stays used."""
    return replace(bucket, capacity=capacity, available=bucket.available + capacity - bucket.capacity)


def take_back(bucket: Bucket, returned: Return) -> Bucket:
    """What the replica has used or does not need is no longer lent to it."""
    return replace(
        bucket,
        available=bucket.available + returned.given,
        outstanding=bucket.outstanding - returned.spent - returned.given,
    )


def exchange(
    buckets: Mapping[BucketId, Bucket], asks: Sequence[Ask], wishes: Mapping[BucketId, float]
) -> Settled:
    """Answers asks in their order, each wholly or not at all; then lends ahead what is wished for.

    Only what a replica has not got in its pool is taken from the store.
    """
    after = dict(buckets)
    decisions = [_answer(after, ask) for ask in asks]
    for bucket_id, wish in wishes.items():
        bucket = after[bucket_id]
        after[bucket_id] = _lend(bucket, min(wish - bucket.pool, _slice(bucket)))
    return Settled(after, decisions)


def use(ask: Ask, granted: Granted, bucket: BucketId) -> int:
    """What a granted ask holds of a bucket."""
    return ask.prompt_tokens + granted.output_tokens if bucket in ask.tokens else 1


def _answer(buckets: dict[BucketId, Bucket], ask: Ask) -> Decision:
    for bucket_id in ask.buckets:
        bucket, least = buckets[bucket_id], ask.least(bucket_id)
        if _within_reach(bucket) < least:
            return Short(
                bucket=bucket_id,
                requested=least,
                remaining=max(0.0, _within_reach(bucket)),
                may_come_back=bucket.idle_elsewhere > 0,
            )
    rooms = [int(_within_reach(buckets[bucket_id])) - ask.prompt_tokens for bucket_id in ask.tokens]
    granted = Granted(min([ask.output_cap, *rooms]))
    for bucket_id in ask.buckets:
        buckets[bucket_id] = _draw(buckets[bucket_id], use(ask, granted, bucket_id))
    return granted


def _within_reach(bucket: Bucket) -> float:
    return bucket.pool + max(0.0, bucket.available)


def _draw(bucket: Bucket, amount: float) -> Bucket:
    """Takes from the pool, and from the store what the pool lacks."""
    bucket = _lend(bucket, amount - bucket.pool)
    return replace(bucket, pool=bucket.pool - amount)


def _lend(bucket: Bucket, amount: float) -> Bucket:
    amount = max(0.0, amount)
    return replace(
        bucket,
        pool=bucket.pool + amount,
        available=bucket.available - amount,
        outstanding=bucket.outstanding + amount,
    )


def _slice(bucket: Bucket) -> float:
    """So that what is left is enough for as much again for every replica: nobody is starved by loans."""
    share = max(0.0, bucket.available) / (2 * max(1, bucket.num_replicas))
    return float(int(share))
