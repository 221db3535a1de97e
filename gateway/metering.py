"""What a request may use and what it has used: reserved before it runs, settled once when it has ended.

    reserve ── limits that count (limit_book) ── credit here (wallet), or borrowed (exchange) ── Reservation
    extend  ── more output for a live request, out of the buckets that let it in
    settle  ── what was not used is free here at once; the event goes to the ledger with the next exchange

A batch's item is let in by `reserve_item` and ended by `record_item` or `give_up_item`: no journal and no
engine's record names who pays for it, since what its process ran and did not record is run again.

It knows no HTTP and no engine. Nothing on this way waits for the store while there is credit.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from engine.protocol import RequestClass, Usage
from gateway.batches.ids import LeaseKey
from gateway.batches.results import ItemResult
from gateway.closing import EndLife
from gateway.db import Database
from gateway.engines.directory import LastRecords
from gateway.errors import JournalUnavailable, StoreUnavailable
from gateway.exchange import Exchange, LifeEnded
from gateway.exchange_messages import EndedItem
from gateway.keys.caller import Caller
from gateway.life import Life
from gateway.logs import Trouble
from gateway.quotas import account as accounts
from gateway.quotas import standing
from gateway.quotas.account import Account
from gateway.quotas.limit_book import LimitBook, Payer
from gateway.quotas.limits import Counting, QuotaKind, QuotaLimit, Unit
from gateway.quotas.refusals import Shortage, limit_name, limit_reached
from gateway.quotas.reservation import Demand, Payment, Reservation
from gateway.quotas.sizing import EXTENSION_TOKENS, Size, sized
from gateway.quotas.wallet import Hold, Wallet, Want
from gateway.rhythm import Rhythm
from gateway.sweep import DEAD_AFTER_SECONDS, SWEEP_SECONDS, Sweeper
from gateway.tenants.ids import TenantId
from gateway.usage import journal_home
from gateway.usage import queries as ledger
from gateway.usage.journal import Journal
from gateway.usage.journal_format import Closed, Extended, Opened, Reached
from gateway.usage.outcome import Outcome
from gateway.usage.queries import UsageEvent

FLUSH_SECONDS: Final = 10.0
EXTENDED_WITHIN_SECONDS: Final = 2.0  # so long an answer may keep its place at the engine and wait for credit
EXTEND_AGAIN_SECONDS: Final = 0.1
OUTPUT_TOKENS_AHEAD: Final = 63  # the most that is charged beyond what a client got when all has died
SYNC_SECONDS: Final = 0.25  # what a power cut may cost; a killed process loses nothing

logger = logging.getLogger(__name__)


class Live(msgspec.Struct, eq=False, kw_only=True):
    """A request between its reservation and its settlement. So much of its output the journal knows of."""

    caller: Caller
    payer: Payer
    admitted_us: int
    prompt_tokens: int
    output_tokens_written_down: int = 0


async def _no_engines(_: int) -> LastRecords:
    return LastRecords(records=(), is_complete=True)


class Metering:
    """One gateway process's promises. `end_life(epoch)` ends a dead process's work at the engines.

    `on_ended` is called when others took this process for dead: its promises are void; `on_store_answer`
    after each exchange with the store, with whether it answered.
    """

    def __init__(
        self,
        database: Database,
        replica_name: str,
        end_life: EndLife = _no_engines,
        *,
        journal_dir: Path | None = None,
        on_ended: Callable[[], None] = lambda: None,
        on_store_answer: Callable[[bool], None] = lambda _: None,
        sweep_seconds: float = SWEEP_SECONDS,
        dead_after_seconds: float = DEAD_AFTER_SECONDS,
    ) -> None:
        self._database = database
        self._wallet = Wallet()
        self._exchange = Exchange(
            database, self._wallet, on_stored=self._note_stored, on_answer=on_store_answer
        )
        self._book = LimitBook(database, on_change=self._wallet.follow)
        self._life = Life(database, replica_name)
        self._sweeper = Sweeper(
            database,
            end_life,
            sweep_seconds=sweep_seconds,
            dead_after_seconds=dead_after_seconds,
        )
        self._journal_dir = journal_dir
        self._journal: Journal | None = None
        self._rhythm = Rhythm()
        self._trouble = Trouble(logger, "what is served is not written to the disk")
        self._on_ended = on_ended
        self._live: dict[str, Live] = {}
        self._num_live: Counter[TenantId] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def epoch(self) -> int:
        """The number of this process's life, once started."""
        return self._life.epoch

    async def start(self) -> None:
        """Begins this life. Raises StoreUnavailable or JournalUnavailable."""
        home = await self._journal_home()
        epoch = await self._life.begin()
        self._exchange.begin(epoch)
        if home is not None:
            try:
                self._journal = Journal.open(home, epoch)
            except JournalUnavailable:
                await self._life.end(holds_nothing=True)
                raise
            _tell_of_strangers(home)
        await self._book.start()
        self._tasks = [
            asyncio.create_task(self._run_exchange(), name="exchange with the store"),
            asyncio.create_task(self._sweeper.run(own_epoch=epoch, journal_dir=home), name="sweeper"),
            asyncio.create_task(self._sync_journal(), name="journal"),
        ]

    async def stop(self) -> None:
        """Tells the store all that is still untold, for at most `FLUSH_SECONDS`, and ends this life."""
        await self._stop_tasks()
        holds_nothing = False
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._exchange.finish()
            holds_nothing = not self._live
        except (TimeoutError, LifeEnded):
            if self._exchange.num_untold:
                logger.error("%d events are not in the ledger", self._exchange.num_untold)
        await self._life.end(holds_nothing=holds_nothing)
        if self._journal is not None:
            self._journal.close()

    async def _stop_tasks(self) -> None:
        self._rhythm.stop()
        self._exchange.stop()
        self._sweeper.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._book.stop()

    async def reserve(
        self, *, request_id: str, caller: Caller, model: str, request_class: RequestClass, demand: Demand
    ) -> Reservation:
        """Takes slots, requests and tokens of all limits that count; `request_id` must be new.

        Raises LimitReached, InvalidRequest or StoreUnavailable; nothing is counted then, nor when the caller
        is cancelled.
        """
        payer = Payer(caller.tenant, caller.project, caller.key, model, request_class)
        limits = await self._book.limits_for(payer)
        size = sized(limits, demand, tenant_name=caller.tenant_name)
        hold = self._wallet.take(size.want, now=time.monotonic()) or await self._borrow(size)
        if isinstance(hold, Shortage):
            raise limit_reached(hold, model=model, tenant_name=caller.tenant_name)
        return self._let_in(request_id, caller, payer, hold, size)

    async def reserve_item(
        self, *, request_id: str, caller: Caller, model: str, demand: Demand
    ) -> Reservation:
        """As `reserve`, for a batch's item: of limits for both classes, only budgets count."""
        payer = Payer(caller.tenant, caller.project, caller.key, model, RequestClass.OFFLINE)
        limits = tuple(limit for limit in await self._book.limits_for(payer) if _counts_items(limit))
        size = sized(limits, demand, tenant_name=caller.tenant_name)
        hold = self._wallet.take(size.want, now=time.monotonic()) or await self._exchange.borrow(size.want)
        if isinstance(hold, Shortage):
            raise limit_reached(hold, model=model, tenant_name=caller.tenant_name)
        live = _live(caller, payer, size)
        self._live[request_id] = live
        self._note_live(caller.tenant, +1)
        return _reservation(request_id, caller, hold, size, account=b"")

    def record_item(
        self, reservation: Reservation, result: ItemResult, outcome: Outcome, *, share_error: float
    ) -> None:
        """The item has ended: its result, its charge and its end reach the store together, or not at all."""
        live = self._end_live(reservation.request_id)
        event = _event(reservation.request_id, live, result.usage, outcome)
        self._exchange.record_item(
            EndedItem(
                tenant=live.payer.tenant,
                result=result,
                event=event,
                hold=reservation.hold,
                share_error=share_error,
            )
        )

    def record_unreserved_item(self, tenant: TenantId, result: ItemResult, *, share_error: float) -> None:
        """The item has ended before anything was reserved for it: its result is an error."""
        self._exchange.record_item(
            EndedItem(tenant=tenant, result=result, event=None, hold=None, share_error=share_error)
        )

    def unrecorded_items(self) -> set[LeaseKey]:
        """Leases of items that have ended here, and the store does not know it yet."""
        return self._exchange.unrecorded_items()

    def give_up_item(self, reservation: Reservation) -> None:
        """The item will be run again, by somebody: nothing was used."""
        self._end_live(reservation.request_id)
        self._wallet.end(reservation.hold, used_tokens=0, counts_as_request=False)

    async def _borrow(self, size: Size) -> Hold | Shortage:
        """What is left of a day's or a month's budget can be used up; a rate is soon there again."""
        found = await self._exchange.borrow(size.want)
        if isinstance(found, Hold) or found.limit.counting is not Counting.WINDOW or size.least == size.want:
            return found
        return await self._exchange.borrow(size.least)

    async def extend(self, reservation: Reservation) -> Payment:
        """Pays for more of a live request's output: out of credit here, or borrowed.

        A rate refills, and a store may come back: the request waits a little for these.
        """
        hold, paid_before = reservation.hold, reservation.paid_tokens
        num_tokens = min(EXTENSION_TOKENS, reservation.output_cap - paid_before)
        short_of = None if self._wallet.grow(hold, num_tokens) else await self._borrow_more(hold, num_tokens)
        num_more = reservation.paid_tokens - paid_before
        if num_more == 0:
            return Payment(paid_tokens=paid_before, ended_by=short_of)
        is_journaled = bool(reservation.account)
        if is_journaled and not self._write_down(Extended(reservation.request_id, num_more)):
            # then it is not generated
            return Payment(paid_tokens=paid_before, ended_by="journal")
        return Payment(paid_tokens=reservation.paid_tokens, ended_by=None)

    async def _borrow_more(self, hold: Hold, num_tokens: int) -> str | None:
        """What keeps a live request from having a token more, for as long as it may wait; None: nothing."""
        want = Want(limits=(), prompt_tokens=0, output_cap=num_tokens, output_floor=1)
        reason = "database"  # one that hangs would not say so for longer
        with suppress(TimeoutError):
            async with asyncio.timeout(EXTENDED_WITHIN_SECONDS):
                while True:
                    answer = await self._borrowed(want, hold)
                    if isinstance(answer, Hold):
                        return None
                    reason = "database" if answer is None else limit_name(answer.limit)
                    if answer is not None and answer.limit.counting is not Counting.RATE:
                        return reason
                    await asyncio.sleep(EXTEND_AGAIN_SECONDS)
        return reason

    async def _borrowed(self, want: Want, hold: Hold) -> Hold | Shortage | None:
        """What the store says; None when it is away."""
        try:
            return await self._exchange.borrow(want, hold)
        except StoreUnavailable:
            return None

    def reached(self, reservation: Reservation, *, output_tokens: int) -> None:
        """So much output has come, and may now be passed on: should nobody live to settle it, it is charged.

        The journal is told of the next tokens with it, so that few need a record of their own.
        """
        live = self._live.get(reservation.request_id)
        if live is None or output_tokens <= live.output_tokens_written_down:
            return
        ahead = max(output_tokens, min(output_tokens + OUTPUT_TOKENS_AHEAD, reservation.paid_tokens))
        if self._write_down(Reached(reservation.request_id, live.prompt_tokens, ahead)):
            live.output_tokens_written_down = ahead

    def settle(self, reservation: Reservation, usage: Usage, outcome: Outcome) -> None:
        """Frees what the request held and queues its event: once, however often it is called.

        A request that the engine refused was none.
        """
        live = self._live.pop(reservation.request_id, None)
        if live is None:
            return
        num_tokens = usage.prompt_tokens + usage.completion_tokens
        ran = outcome is not Outcome.REFUSED
        self._wallet.end(reservation.hold, used_tokens=num_tokens, counts_as_request=ran)
        self._write_down(
            Closed(
                reservation.request_id,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                outcome,
            )
        )
        self._exchange.record(_event(reservation.request_id, live, usage, outcome))
        self._note_live(live.caller.tenant, -1)

    def _let_in(self, request_id: str, caller: Caller, payer: Payer, hold: Hold, size: Size) -> Reservation:
        live = _live(caller, payer, size)
        account = accounts.encode(_account(live, hold))
        self._write_down_beginning(request_id, live, hold, account)
        self._live[request_id] = live
        self._note_live(caller.tenant, +1)
        return _reservation(request_id, caller, hold, size, account=account)

    def _end_live(self, request_id: str) -> Live:
        live = self._live.pop(request_id)
        self._note_live(live.caller.tenant, -1)
        return live

    def _note_live(self, tenant: TenantId, change: int) -> None:
        self._num_live[tenant] += change
        self._exchange.note_live(tenant, self._num_live[tenant])
        if self._num_live[tenant] == 0:
            del self._num_live[tenant]

    # --- the journal -------------------------------------------------------------------------------------

    def _write_down_beginning(self, request_id: str, live: Live, hold: Hold, account: bytes) -> None:
        """Nobody is served whose usage could be lost: raises JournalUnavailable, holding nothing."""
        if self._journal is None:
            return
        num_tokens = live.prompt_tokens + hold.output_tokens
        try:
            self._journal.append(Opened(request_id, account, num_tokens, accounts.moment(live.admitted_us)))
        except JournalUnavailable:
            self._wallet.end(hold, used_tokens=0, counts_as_request=False)
            raise

    def _write_down(self, record: Extended | Reached | Closed) -> bool:
        """Whether it could be. What is served goes on; the store is told of its end all the same."""
        try:
            if self._journal is not None:
                self._journal.append(record)
        except JournalUnavailable as error:
            self._trouble.note(error, is_foreseeable=True)
            return False
        return True

    def _note_stored(self, request_ids: Iterable[str]) -> None:
        if self._journal is not None:
            self._journal.stored(request_ids)

    async def _journal_home(self) -> Path | None:
        """Of this store's lives: the folder may hold those of another store, of the same numbers."""
        if self._journal_dir is None:
            return None
        async with self._database.system_transaction() as connection:
            return journal_home.home_of(self._journal_dir, await ledger.store_id(connection))

    async def _sync_journal(self) -> None:
        async for _ in self._rhythm.turns(SYNC_SECONDS):
            try:
                if self._journal is not None:
                    await self._journal.sync()
            except JournalUnavailable as error:
                self._trouble.note(error, is_foreseeable=True)
            else:
                self._trouble.end()

    async def _run_exchange(self) -> None:
        try:
            await self._exchange.run()
        except LifeEnded:
            logger.critical("this process was taken for dead; what it promised is void")
            self._on_ended()


def _tell_of_strangers(home: Path) -> None:
    others = journal_home.of_others(home)
    if others:
        logger.warning("journals of other databases in %s are left alone: %s", home.parent, ", ".join(others))


def _counts_items(limit: QuotaLimit) -> bool:
    """What is per minute or at once, for both classes, is for people; batches have limits of their own."""
    is_for_people = limit.counting in (Counting.RATE, Counting.SLOTS) and limit.request_class is None
    return not is_for_people


def _live(caller: Caller, payer: Payer, size: Size) -> Live:
    return Live(
        caller=caller,
        payer=payer,
        admitted_us=time.time_ns() // 1000,
        prompt_tokens=size.want.prompt_tokens,
    )


def _reservation(request_id: str, caller: Caller, hold: Hold, size: Size, *, account: bytes) -> Reservation:
    return Reservation(
        request_id=request_id,
        tenant=caller.tenant,
        output_cap=size.output_cap,
        capped_by=size.capped_by,
        requests=standing.tightest(hold, Unit.REQUESTS),
        tokens=standing.tightest(hold, Unit.TOKENS),
        account=account,
        hold=hold,
        limited_by=standing.shortest(hold) if hold.output_tokens < size.want.output_cap else None,
    )


def _account(live: Live, hold: Hold) -> Account:
    return Account(
        tenant=live.payer.tenant,
        project=live.payer.project,
        key=live.payer.key,
        model=live.payer.model,
        request_class=live.payer.request_class,
        admitted_us=live.admitted_us,
        token_buckets=tuple(credit.bucket for credit in hold.token_credits),
        request_buckets=tuple(
            credit.bucket for credit in hold.parts if credit.limit.kind is QuotaKind.REQUESTS_PER_MINUTE
        ),
    )


def _event(request_id: str, live: Live, usage: Usage, outcome: Outcome) -> UsageEvent:
    return UsageEvent(
        request_id=request_id,
        tenant=live.payer.tenant,
        project=live.payer.project,
        key=live.payer.key,
        model=live.payer.model,
        request_class=live.payer.request_class,
        usage=usage,
        outcome=outcome,
        admitted_at=accounts.moment(live.admitted_us),
    )
