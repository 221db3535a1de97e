"""Lets a group of requests in, each against its tenant's limits, within one transaction.

`quotas.policy` decides; this reads what it decides on and stores what it decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestClass
from gateway.keys.caller import Caller
from gateway.quotas import queries as quotas
from gateway.quotas.held import Held
from gateway.quotas.policy import Ask, Granted, NoSlot, NoTokens, Standing, decide, refill
from gateway.quotas.queries import TimedStanding
from gateway.tenants.ids import TenantId


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One request that asks to be let in."""

    request_id: str
    caller: Caller
    model: str
    request_class: RequestClass
    ask: Ask


@dataclass(frozen=True, kw_only=True)
class AdmittedClaim:
    """One request that was let in, as promised and as stored."""

    granted: Granted
    held: Held


Verdict = AdmittedClaim | NoSlot | NoTokens


async def write(connection: AsyncConnection, claims: Sequence[Claim], *, epoch: int) -> list[Verdict]:
    """Answers the claims in their order and stores those that were let in."""
    tenants = sorted({claim.caller.tenant for claim in claims})
    await quotas.lock(connection, tenants)
    before = await quotas.standings(connection, tenants)
    after, verdicts = _answer(before, claims)
    held = [verdict.held for verdict in verdicts if isinstance(verdict, AdmittedClaim)]
    if held:
        buckets = {one.tenant: (after[one.tenant].available, before[one.tenant].now) for one in held}
        await quotas.hold(connection, epoch=epoch, held=held, buckets=buckets)
    return verdicts


def _answer(
    before: dict[TenantId, TimedStanding], claims: Sequence[Claim]
) -> tuple[dict[TenantId, Standing], list[Verdict]]:
    """Also where the tenants stand afterwards."""
    standings = {
        tenant: refill(timed.standing, elapsed_seconds=timed.elapsed_seconds)
        for tenant, timed in before.items()
    }
    verdicts: list[Verdict] = []
    for claim in claims:
        tenant = claim.caller.tenant
        standings[tenant], decision = decide(standings[tenant], claim.ask)
        verdicts.append(
            AdmittedClaim(granted=decision, held=_held(claim, decision, before[tenant]))
            if isinstance(decision, Granted)
            else decision
        )
    return standings, verdicts


def _held(claim: Claim, granted: Granted, timed: TimedStanding) -> Held:
    return Held(
        request_id=claim.request_id,
        tenant=claim.caller.tenant,
        project=claim.caller.project,
        key=claim.caller.key,
        model=claim.model,
        request_class=claim.request_class,
        tokens=granted.held_tokens,
        admitted_at=timed.now,
    )
