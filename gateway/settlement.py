"""Ends reservations in one transaction: slots freed, unused tokens given back, the ledger written.

Exactly once per request: who deletes the reservation moves the bucket, and the ledger takes one row for each.
It knows no task and no retry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import assert_never

from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import Usage
from gateway.db import Database
from gateway.quotas import queries as quotas
from gateway.quotas.held import Held
from gateway.quotas.policy import Standing, refill, release
from gateway.quotas.queries import TimedStanding
from gateway.tenants.ids import TenantId
from gateway.usage import queries as ledger
from gateway.usage.outcome import Outcome
from gateway.usage.queries import UsageEvent

NOTHING_KNOWN = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The request ended and what it used is known."""

    held: Held
    usage: Usage
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Nobody knows what the request used, so all it held counts as used."""

    held: Held


@dataclass(frozen=True, kw_only=True)
class Voided:
    """The request never began; its reservation may not even exist."""

    request_id: str
    tenant: TenantId


Settlement = Spent | Lost | Voided


async def write(database: Database, settlements: Sequence[Settlement]) -> None:
    """Settles all of them or, raising StoreUnavailable, perhaps none; doing it again is harmless."""
    tenants = sorted({_tenant(one) for one in settlements})
    events = [event for one in settlements if (event := _event(one)) is not None]
    async with database.transaction() as connection:
        await quotas.lock(connection, tenants)
        await _give_back(connection, tenants, settlements)
        if events:
            await ledger.record(connection, events)


async def _give_back(
    connection: AsyncConnection, tenants: Sequence[TenantId], settlements: Sequence[Settlement]
) -> None:
    before = await quotas.standings(connection, tenants)
    gone = await quotas.delete_reservations(
        connection, tenants=tenants, request_ids=[_request_id(one) for one in settlements]
    )
    buckets = _buckets_after(before, gone, settlements)
    if buckets:
        await quotas.save_buckets(connection, buckets)


def _buckets_after(
    before: Mapping[TenantId, TimedStanding], gone: Mapping[str, int], settlements: Sequence[Settlement]
) -> dict[TenantId, tuple[float, datetime]]:
    """Refilled first, under what was held until now, then given what was not used."""
    buckets = {}
    for tenant, timed in before.items():
        if timed.standing.limits.tokens_per_minute is None:
            continue
        ended = [one for one in settlements if _tenant(one) == tenant and gone.get(_request_id(one), 0) > 0]
        standing = reduce(
            lambda standing, one: _release(standing, one, held_tokens=gone[_request_id(one)]),
            ended,
            refill(timed.standing, elapsed_seconds=timed.elapsed_seconds),
        )
        buckets[tenant] = (standing.available, timed.now)
    return buckets


def _release(standing: Standing, settlement: Settlement, *, held_tokens: int) -> Standing:
    match settlement:
        case Spent():
            used = settlement.usage.prompt_tokens + settlement.usage.completion_tokens
        case Lost():
            used = held_tokens
        case Voided():
            used = 0
        case _:
            assert_never(settlement)
    return release(standing, held_tokens=held_tokens, used_tokens=used)


def _event(settlement: Settlement) -> UsageEvent | None:
    match settlement:
        case Spent():
            return _usage_event(settlement.held, settlement.usage, settlement.outcome)
        case Lost():
            return _usage_event(settlement.held, NOTHING_KNOWN, Outcome.LOST)
        case Voided():
            return None
        case _:
            assert_never(settlement)


def _usage_event(held: Held, usage: Usage, outcome: Outcome) -> UsageEvent:
    return UsageEvent(
        request_id=held.request_id,
        tenant=held.tenant,
        project=held.project,
        key=held.key,
        model=held.model,
        request_class=held.request_class,
        usage=usage,
        outcome=outcome,
        admitted_at=held.admitted_at,
    )


def _request_id(settlement: Settlement) -> str:
    return settlement.request_id if isinstance(settlement, Voided) else settlement.held.request_id


def _tenant(settlement: Settlement) -> TenantId:
    return settlement.tenant if isinstance(settlement, Voided) else settlement.held.tenant
