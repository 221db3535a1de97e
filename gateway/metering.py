"""What a request may use and what it has used: reserved before it runs, settled once when it has ended.

Spans quotas (slots, tokens) and usage (the ledger). What arrives together is committed together:
claims in one transaction, settlements in another. It knows no HTTP and no engine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, assert_never

from engine.protocol import RequestClass, Usage
from gateway import admission, settlement
from gateway.admission import AdmittedClaim, Claim, Verdict
from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.group_commit import GroupCommit
from gateway.heartbeat import Heartbeat
from gateway.keys.caller import Caller
from gateway.quotas import queries as quotas
from gateway.quotas.held import Held
from gateway.quotas.policy import Ask, NoSlot, NoTokens
from gateway.quotas.refusals import limit_reached
from gateway.quotas.reservation import Reservation
from gateway.settlement import Lost, Settlement, Spent, Voided
from gateway.usage.outcome import Outcome

BEAT_SECONDS: Final = 1.0
DEAD_AFTER_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 0.1
MAX_RETRY_SECONDS: Final = 2.0
SETTLE_WAIT_SECONDS: Final = 5.0  # a finished answer is not kept from its client longer than that
FLUSH_SECONDS: Final = 10.0
USAGE_REPORT_SECONDS: Final = 3.0

UsageOf = Callable[[int], Awaitable[Mapping[str, Usage]]]

logger = logging.getLogger(__name__)


class Metering:
    """One gateway process's promises. `usage_of(epoch)` tells what the engines did for a life that ended."""

    def __init__(
        self,
        database: Database,
        replica_name: str,
        usage_of: UsageOf | None = None,
        *,
        beat_seconds: float = BEAT_SECONDS,
        dead_after_seconds: float = DEAD_AFTER_SECONDS,
    ) -> None:
        self._database = database
        self._usage_of = usage_of
        self._claims: GroupCommit[Claim, Verdict] = GroupCommit(self._admit_group)
        self._settlements: GroupCommit[Settlement, None] = GroupCommit(self._settle_group)
        self._live: dict[str, Held] = {}
        self._settling: dict[str, asyncio.Future[None]] = {}
        self._heartbeat = Heartbeat(
            database,
            replica_name,
            on_dead=self._sweep,
            beat_seconds=beat_seconds,
            dead_after_seconds=dead_after_seconds,
        )

    @property
    def epoch(self) -> int:
        """The number of this process's life, once started."""
        return self._heartbeat.epoch

    async def start(self) -> None:
        """Registers this life and begins to beat. Raises StoreUnavailable."""
        await self._heartbeat.start()

    async def stop(self) -> None:
        """Flushes what is still to be settled, for at most `FLUSH_SECONDS`, and ends this life."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._claims.drain()  # first, as what nobody waits for any more is given back
                await self._settlements.drain()
        except TimeoutError:
            logger.error("%d settlements not stored; others will sweep them", len(self._settling))
            self._settlements.cancel()
        await self._heartbeat.stop(holds_nothing=not self._live and not self._settling)

    async def reserve(
        self,
        *,
        request_id: str,
        caller: Caller,
        model: str,
        request_class: RequestClass,
        prompt_tokens: int,
        output_cap: int,
        output_floor: int,
    ) -> Reservation:
        """Takes a slot and tokens of the caller's tenant; `request_id` must be new.

        Raises LimitReached or StoreUnavailable; nothing is counted then, nor when the caller is cancelled.
        """
        ask = Ask(prompt_tokens=prompt_tokens, output_cap=output_cap, output_floor=output_floor)
        claim = Claim(request_id=request_id, caller=caller, model=model, request_class=request_class, ask=ask)
        match await self._verdict_on(claim):
            case AdmittedClaim() as admitted:
                self._live[request_id] = admitted.held
                return _reservation(admitted)
            case NoSlot() | NoTokens() as refusal:
                raise limit_reached(refusal, model=model, tenant_name=caller.tenant_name)
            case never:
                assert_never(never)

    async def settle(self, reservation: Reservation, usage: Usage, outcome: Outcome) -> None:
        """Frees the slot, gives unused tokens back and writes the ledger: once, however often it is called.

        Queued before the first await, so cancelling the caller changes nothing. Retried while the store is
        away; returns when stored, or after `SETTLE_WAIT_SECONDS` with the work still queued.
        """
        held = self._live.pop(reservation.request_id, None)
        if held is not None:
            self._submit(reservation.request_id, Spent(held=held, usage=usage, outcome=outcome))
        stored = self._settling.get(reservation.request_id)
        if stored is None:
            return
        await asyncio.wait({stored}, timeout=SETTLE_WAIT_SECONDS)
        if not stored.done():
            logger.warning("request %s is settled later: the store is away", reservation.request_id)

    async def _verdict_on(self, claim: Claim) -> Verdict:
        answer = self._claims.submit(claim)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(partial(self._give_back, claim))
            raise
        except StoreUnavailable:
            self._void(claim)  # a commit that broke off may have taken effect
            raise

    async def _admit_group(self, claims: Sequence[Claim]) -> list[Verdict]:
        async with self._database.transaction() as connection:
            return await admission.write(connection, claims, epoch=self.epoch)

    def _give_back(self, claim: Claim, answer: "asyncio.Future[Verdict]") -> None:
        """Nobody waits for the answer any more."""
        failed = not answer.cancelled() and answer.exception() is not None
        if answer.cancelled() or failed or isinstance(answer.result(), AdmittedClaim):
            self._void(claim)

    def _void(self, claim: Claim) -> None:
        self._submit(claim.request_id, Voided(request_id=claim.request_id, tenant=claim.caller.tenant))

    def _submit(self, request_id: str, work: Settlement) -> "asyncio.Future[None]":
        stored = self._settlements.submit(work)
        self._settling[request_id] = stored
        stored.add_done_callback(partial(self._forget, request_id))
        return stored

    def _forget(self, request_id: str, stored: "asyncio.Future[None]") -> None:
        if self._settling.get(request_id) is stored:
            del self._settling[request_id]
        if not stored.cancelled() and (error := stored.exception()) is not None:
            logger.error("request %s could not be settled", request_id, exc_info=error)

    async def _settle_group(self, group: Sequence[Settlement]) -> list[None]:
        delay = FIRST_RETRY_SECONDS
        while True:
            try:
                await settlement.write(self._database, group)
            except StoreUnavailable:
                logger.warning("%d settlements wait for the store", len(group))
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_RETRY_SECONDS)
            else:
                return [None] * len(group)

    async def _sweep(self, epoch: int) -> None:
        """Settles what a dead life left open, by the engines' count where they have one."""
        known = await self._usage_by(epoch)
        async with self._database.transaction() as connection:
            left = await quotas.held_by(connection, epoch=epoch)
        logger.warning("epoch %d died with %d requests open", epoch, len(left))
        stored = [self._submit(held.request_id, _what_became_of(held, known)) for held in left]
        if stored:  # these alone: under load there is always something to settle
            await asyncio.wait(stored)

    async def _usage_by(self, epoch: int) -> Mapping[str, Usage]:
        if self._usage_of is None:
            return {}
        try:
            async with asyncio.timeout(USAGE_REPORT_SECONDS):
                return await self._usage_of(epoch)
        except TimeoutError:
            logger.warning("no engine reported on epoch %d in time", epoch)
            return {}


def _what_became_of(held: Held, known: Mapping[str, Usage]) -> Settlement:
    usage = known.get(held.request_id)
    return Lost(held=held) if usage is None else Spent(held=held, usage=usage, outcome=Outcome.LOST)


def _reservation(admitted: AdmittedClaim) -> Reservation:
    return Reservation(
        request_id=admitted.held.request_id,
        tenant=admitted.held.tenant,
        reserved_tokens=admitted.granted.reserved_tokens,
        max_output_tokens=admitted.granted.max_output_tokens,
        requests=admitted.granted.requests,
        tokens=admitted.granted.tokens,
    )
