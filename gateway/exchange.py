"""One gateway process's dealings with the store: what was used is told, what is needed is borrowed.

    every tick, and at once when a request finds too little credit here:

    one transaction:  who are we (still) -> lock the buckets -> write the ledger -> take back, refill, lend

Statements per second depend on ticks, not on requests. An exchange whose answer was lost is sent again under
its number, so that nothing is told twice.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches import claims
from gateway.batches import results as batch_results
from gateway.batches.ids import LeaseKey
from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.exchange_messages import Answer, EndedItem, Heard, Message, ToldItem, Waiting, known, unspent
from gateway.logs import Trouble
from gateway.quotas import policy
from gateway.quotas import queries as quotas
from gateway.quotas.credit import Credit
from gateway.quotas.policy import Ask, Bucket, BucketId, Granted, Return, Short
from gateway.quotas.queries import LockedBucket, SavedBucket
from gateway.quotas.refusals import Shortage
from gateway.quotas.wallet import Hold, Wallet, Want
from gateway.tenants.ids import TenantId
from gateway.usage import queries as ledger
from gateway.usage.outcome import Outcome
from gateway.usage.queries import UsageEvent

TICK_SECONDS: Final = 0.25
IDLE_RETURNS_WITHIN_SECONDS: Final = 0.6  # so long a request waits for credit that is idle elsewhere
ASK_AGAIN_SECONDS: Final = 0.05
MAX_EVENTS: Final = 5_000  # in one transaction
MAX_ITEMS: Final = 1_000
MAX_RESULT_CHARACTERS: Final = 8_000_000

logger = logging.getLogger(__name__)


class LifeEnded(Exception):
    """Others have ended this process's life in the store: it was taken for dead."""


class Exchange:
    """Runs one exchange at a time, for the life that was begun last.

    `on_stored` gets what the ledger has, `on_answer` after each exchange whether the store answered.
    """

    def __init__(
        self,
        database: Database,
        wallet: Wallet,
        *,
        on_stored: Callable[[Iterable[str]], None],
        on_answer: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._on_stored = on_stored
        self._on_answer = on_answer
        self._wallet = wallet
        self._epoch: int | None = None
        self._number = 0
        self._waiting: list[Waiting] = []
        self._events: list[UsageEvent] = []
        self._items: list[EndedItem] = []
        self._num_live: dict[TenantId, int] = {}
        self._untold: Message | None = None
        self._call = asyncio.Event()
        self._next_tick = 0.0
        self._is_stopping = False
        self._trouble = Trouble(logger, "nothing is told to the store, nothing borrowed")

    def begin(self, epoch: int) -> None:
        """A life begins: nothing is lent to it yet."""
        self._epoch, self._number = epoch, 0

    @property
    def num_untold(self) -> int:
        """Events that the store does not have."""
        under_way = len(self._untold.events) + len(self._untold.items) if self._untold else 0
        return len(self._events) + len(self._items) + under_way

    # --- for the requests --------------------------------------------------------------------------------

    async def borrow(self, want: Want, hold: Hold | None = None) -> Hold | Shortage:
        """Credit for a request that finds too little here. Raises StoreUnavailable; nothing is held then.

        Cancelling gives up what the store may just be granting.
        """
        waiting = Waiting(want=want, hold=hold, until=time.monotonic() + IDLE_RETURNS_WITHIN_SECONDS)
        self._waiting.append(waiting)
        self._call.set()
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._give_up(waiting, is_new=hold is None)
            raise

    def record(self, event: UsageEvent) -> None:
        """Queues an event for the ledger."""
        self._events.append(event)

    def record_item(self, ended: EndedItem) -> None:
        """Queues an item's result, with all that moves by it."""
        self._items.append(ended)

    def unrecorded_items(self) -> set[LeaseKey]:
        """Leases of items that have ended and are not told yet, as far as is known."""
        told = [one.ended for one in self._untold.items] if self._untold else []
        return {ended.result.lease for ended in [*self._items, *told]}

    def note_live(self, tenant: TenantId, num_live: int) -> None:
        """How many requests of a tenant live now."""
        self._num_live[tenant] = num_live

    def _give_up(self, waiting: Waiting, *, is_new: bool) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        answer = waiting.answer
        is_granted = answer.done() and not answer.cancelled() and answer.exception() is None
        if is_new and is_granted and isinstance(hold := answer.result(), Hold):
            self._wallet.end(hold, used_tokens=0, counts_as_request=False)

    # --- exchanges ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exchanges until it is stopped, a tick apart or when called. Raises LifeEnded."""
        while True:
            await self._until_called()
            if self._is_stopping:
                return
            try:
                await self.once()
            except LifeEnded:
                raise
            except Exception as error:  # the next one tries again
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
                self._on_answer(False)
                self._fail_all(error)
                await asyncio.sleep(ASK_AGAIN_SECONDS)
            else:
                self._trouble.end()
                self._on_answer(True)

    def stop(self) -> None:
        """The exchange that is under way is the last."""
        self._is_stopping = True
        self._call.set()

    async def finish(self) -> None:
        """Tells all that is untold and gives everything back, however long that takes. Raises LifeEnded."""
        for credit in self._wallet:
            credit.is_retired = True
        while self._has_more_to_tell():
            self._next_tick = 0.0
            try:
                await self.once()
            except StoreUnavailable as error:
                self._trouble.note(error, is_foreseeable=True)
                await asyncio.sleep(ASK_AGAIN_SECONDS)

    def _has_more_to_tell(self) -> bool:
        is_told = not (self._events or self._items or self._untold or self._num_live)
        return not is_told or any(credit.pool for credit in self._wallet)

    async def once(self) -> None:
        """One exchange. Raises StoreUnavailable; whether it took effect is then told by the next one."""
        now = time.monotonic()
        is_tick = now >= self._next_tick
        if is_tick:
            self._next_tick = now + TICK_SECONDS
            for credit in self._wallet:
                credit.tick(now=now)
        self._waiting = [one for one in self._waiting if not one.has_left]
        waiting = list(self._waiting)
        message = self._untold or self._compose(is_tick=is_tick)
        self._untold = message
        try:
            self._speak_for(waiting, now=now)
            answer = await self._send(message, waiting, now=now)
        finally:
            for credit in self._wallet:  # all: who asked may be over, and name no bucket any more
                credit.is_spoken_for = False
        self._untold = None
        self._number = message.number
        self._on_stored(event.request_id for event in message.events)
        self._take_in(answer, now=now)

    def _compose(self, *, is_tick: bool) -> Message:
        events, self._events = self._events[:MAX_EVENTS], self._events[MAX_EVENTS:]
        num_live, self._num_live = self._num_live, {}
        items = [self._tell_item(ended) for ended in self._some_items()]
        returns = {credit.bucket: credit.tell(gives=is_tick) for credit in self._wallet}
        return Message(
            number=self._number + 1, returns=returns, events=events, items=items, num_live=num_live
        )

    def _some_items(self) -> list[EndedItem]:
        """As many as go into one message, oldest first."""
        num, num_characters = 0, 0
        while num < min(len(self._items), MAX_ITEMS) and num_characters < MAX_RESULT_CHARACTERS:
            num_characters += len(self._items[num].result.body)
            num += 1
        items, self._items = self._items[:num], self._items[num:]
        return items

    def _tell_item(self, ended: EndedItem) -> ToldItem:
        if ended.hold is None or ended.event is None:
            return ToldItem(ended, {})
        usage, ran = ended.result.usage, ended.event.outcome is not Outcome.REFUSED
        num_tokens = usage.prompt_tokens + usage.completion_tokens
        return ToldItem(ended, self._wallet.end(ended.hold, used_tokens=num_tokens, counts_as_request=ran))

    def _speak_for(self, waiting: Sequence[Waiting], *, now: float) -> None:
        """While the store is asked, nobody else takes what those who wait already have."""
        for one in waiting:
            ask = one.ask(self._wallet, now=now)
            for bucket in ask.buckets if ask is not None else ():
                self._wallet.credit(bucket).is_spoken_for = True

    async def _send(self, message: Message, waiting: Sequence[Waiting], *, now: float) -> Answer:
        assert self._epoch is not None, "not begun"
        async with self._database.system_transaction() as connection:
            began = await quotas.begin_exchange(connection, epoch=self._epoch, number=message.number)
            if began is None:
                raise LifeEnded
            await self._open_missing(connection, waiting, now=now)
            self._speak_for(waiting, now=now)  # also for those that are named only now
            buckets = [credit.bucket for credit in self._wallet]
            locked = await quotas.lock(connection, buckets, epoch=self._epoch, began=began) if buckets else {}
            if began.previous >= message.number:  # it took effect, and only its answer was lost
                return known(locked)
            heard = await self._hear(connection, message)
            if heard.events:
                await ledger.record(connection, heard.events)
            if heard.shares:
                await claims.charge_shares(connection, heard.shares)
            if message.num_live:
                await quotas.save_load(connection, message.num_live, epoch=self._epoch)
            answer, saved = self._decide(heard.returns, waiting, locked, now=now)
            if saved:
                await quotas.save(connection, saved, epoch=self._epoch, now=began.now)
        return answer

    async def _hear(self, connection: AsyncConnection, message: Message) -> Heard:
        """Ends the items whose lease this life still has: the others count nowhere, and spent nothing."""
        if not message.items:
            return Heard(message.events, message.returns, {})
        assert self._epoch is not None, "not begun"
        results = [told.ended.result for told in message.items]
        accepted = await batch_results.record(connection, results, epoch=self._epoch)
        counted = [told.ended for told in message.items if told.ended.result.lease in accepted]
        lost = [told.spent for told in message.items if told.ended.result.lease not in accepted]
        shares: defaultdict[TenantId, float] = defaultdict(float)
        for ended in counted:
            shares[ended.tenant] += ended.share_error
        events = message.events + [ended.event for ended in counted if ended.event is not None]
        return Heard(events, unspent(message.returns, lost), dict(shares))

    async def _open_missing(
        self, connection: AsyncConnection, waiting: Sequence[Waiting], *, now: float
    ) -> None:
        """Buckets of limits that nobody here was counted in before, or whose window has just begun."""
        wanted = {limit.id: limit for one in waiting if one.hold is None for limit in one.want.limits}
        missing = self._wallet.missing(wanted.values(), now=now)
        if missing:
            opened = await quotas.open_buckets(connection, [limit.id for limit in missing])
            for bucket in opened:
                self._wallet.open(wanted[bucket.limit], bucket, now=now)

    def _decide(
        self,
        returns: Mapping[BucketId, Return],
        waiting: Sequence[Waiting],
        locked: dict[BucketId, LockedBucket],
        *,
        now: float,
    ) -> tuple[Answer, list[SavedBucket]]:
        before = {
            bucket: _before(one, returns.get(bucket), self._wallet.credit(bucket))
            for bucket, one in locked.items()
        }
        asked = [
            (one, ask)
            for one in waiting
            if (ask := one.ask(self._wallet, now=now)) is not None and all(b in before for b in ask.buckets)
        ]
        wishes = {bucket: credit.wish for bucket in before if (credit := self._wallet.credit(bucket)).wish}
        settled = policy.exchange(before, [ask for _, ask in asked], wishes)
        short = {decision.bucket for decision in settled.decisions if isinstance(decision, Short)}
        saved = [
            SavedBucket(
                state=after,
                granted=locked[bucket].granted + after.outstanding - locked[bucket].state.outstanding,
                idle=max(0.0, after.pool),
                wants=bucket in short and after.idle_elsewhere > 0,
            )
            for bucket, after in settled.buckets.items()
        ]
        answer = Answer(
            was_known=False,
            granted={one.state.id: one.granted for one in saved},
            buckets=dict(settled.buckets),
            wanted={bucket for bucket, one in locked.items() if one.is_wanted and bucket not in short},
            asked=asked,
            decisions=settled.decisions,
        )
        return answer, saved

    def _take_in(self, answer: Answer, *, now: float) -> None:
        """After the commit: what is lent now, and who gets what of it."""
        for bucket, granted in answer.granted.items():
            self._wallet.credit(bucket).arrived(granted=granted)
        if answer.was_known:
            self._call.set()  # those who wait were not answered
            return
        for bucket, state in answer.buckets.items():
            credit = self._wallet.credit(bucket)
            credit.left_elsewhere = max(0.0, state.available) + state.idle_elsewhere
            credit.is_wanted = bucket in answer.wanted
        for (waiting, ask), decision in zip(answer.asked, answer.decisions, strict=True):
            self._tell(waiting, ask, decision, now=now)
        self._wallet.forget_idle()
        if self._waiting:
            asyncio.get_running_loop().call_later(ASK_AGAIN_SECONDS, self._call.set)

    def _tell(self, waiting: Waiting, ask: Ask, decision: policy.Decision, *, now: float) -> None:
        if waiting.has_left:  # what was lent for it is free
            return
        if isinstance(decision, Granted):
            self._waiting.remove(waiting)
            waiting.grant(self._wallet, ask, decision)
            return
        if decision.may_come_back and now < waiting.until:
            return
        self._waiting.remove(waiting)
        credit = self._wallet.credit(decision.bucket)
        ends_at = credit.window_ends_at
        waiting.answer.set_result(
            Shortage(
                limit=credit.limit,
                requested=decision.requested,
                remaining=decision.remaining,
                seconds_left=None if ends_at is None else max(0.0, ends_at - now),
            )
        )

    def _fail_all(self, error: Exception) -> None:
        """Without the store nobody is let in beyond what is lent; nobody waits for it either."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.answer.done():
                one.answer.set_exception(_as_unavailable(error))

    async def _until_called(self) -> None:
        left = self._next_tick - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left)):
                await self._call.wait()
        self._call.clear()


def _before(locked: LockedBucket, returned: Return | None, credit: Credit) -> Bucket:
    """A bucket brought up to date: refilled, under the limit as it is now, with what comes back."""
    bucket = policy.refill(locked.state, elapsed_seconds=locked.elapsed_seconds)
    bucket = policy.resize(bucket, locked.limit_value)
    if returned is not None:
        bucket = policy.take_back(bucket, returned)
    return replace(bucket, pool=credit.pool)


def _as_unavailable(error: Exception) -> StoreUnavailable:
    if isinstance(error, StoreUnavailable):
        return error
    return StoreUnavailable("The request could not be counted right now.")
