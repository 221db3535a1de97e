"""Keeps the engines in offline work, as much as they have room for, and gives back what it does not run.

    claim ── whose turn it is, and so many lines of it (`gateway/batch_claiming.py`) ─▶ ready
    ready ── an engine has room for offline work ─▶ run (`gateway/batch_item.py`) ─▶ recorded, or given back

A worker lives in every gateway process, beside the requests of people; its leases are of that process's life.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from engine.protocol import RequestClass
from gateway.batch_claiming import BatchClaiming, Turn, Wish
from gateway.batch_item import ItemRunner, Job
from gateway.batch_strays import Strays
from gateway.batches.claims import GivenBack
from gateway.batches.ids import BatchId, LeaseKey
from gateway.batches.policy import Again
from gateway.engines.directory import EngineDirectory
from gateway.errors import StoreUnavailable
from gateway.logs import Trouble
from gateway.requests.catalogue import Catalogue

logger = logging.getLogger(__name__)

TURN_SECONDS: Final = 1.0  # between two looks at the store, when nothing makes one sooner
BEYOND_WINDOW: Final = 4  # lines at the engines' door, so that room is used at once
AHEAD_SECONDS: Final = 1.0  # of work is claimed ahead
BEGUN_AT_ONCE: Final = 32  # 6 ms of work
LEAST_AHEAD: Final = 8
MOST_AHEAD: Final = 1_000
MOST_UNRECORDED: Final = 2_000  # results that the store does not have: then it is not asked for more work
BARRED_SECONDS: Final = 15.0
STOP_SECONDS: Final = 5.0
NOW: Final = Again(after_seconds=0.0, counts=False)


class BatchWorker:
    """One per gateway process. Call `start` once the process's life has begun."""

    def __init__(
        self,
        claiming: BatchClaiming,
        runner: ItemRunner,
        *,
        directory: EngineDirectory,
        catalogue: Catalogue,
    ) -> None:
        self._claiming = claiming
        self._runner = runner
        self._directory = directory
        self._catalogue = catalogue
        self._ready: defaultdict[str, deque[Job]] = defaultdict(deque)
        self._running: dict[asyncio.Task[Again | None], Job] = {}
        self._num_running: Counter[str] = Counter()
        self._given_back: list[GivenBack] = []
        self._held_up: dict[BatchId, float] = {}  # until when, in the loop's time
        self._items_per_second = 0.0
        self._num_ended = 0
        self._turned_at = 0.0
        self._may_find_more = True
        self._strays = Strays(claiming)
        self._call = asyncio.Event()
        self._is_filling = False
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._trouble = Trouble(logger, "no lines of batches are claimed")

    # --- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to work. The store and the engines may be away."""
        self._turned_at = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._work(), name="worker of batches")

    async def stop(self) -> None:
        """Ends what runs, without a result, and gives all lines back."""
        self._is_stopping = True
        self._call.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for ready in self._ready.values():
            self._given_back += [_given_back(job, NOW) for job in ready]
            ready.clear()
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._claiming.give_back(self._given_back)

    async def _work(self) -> None:
        while not self._is_stopping:
            try:
                await self._turn()
            except Exception as error:  # the next turn tries again
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
                await asyncio.sleep(TURN_SECONDS)
            else:
                self._trouble.end()
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_SECONDS):
                    await self._call.wait()
            self._call.clear()

    # --- turns -------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._strays.is_due(now):
            await self._strays.give_back(self._known(), now=now)
        self._measure()
        given_back, self._given_back = self._given_back, []
        wish = Wish(
            room=self._room(),
            passed_over=self._passed_over(),
            given_back=given_back,
            held={job.item.batch for job in self._jobs()},
        )
        turn = await self._claiming.turn(wish)
        if any(wish.room.values()):
            self._may_find_more = bool(turn.jobs)
        self._take_in(turn)

    def _measure(self) -> None:
        """How fast lines end, to claim ahead by it."""
        now = asyncio.get_running_loop().time()
        elapsed = max(now - self._turned_at, 1e-3)
        weight = min(1.0, elapsed)
        self._items_per_second += weight * (self._num_ended / elapsed - self._items_per_second)
        self._num_ended, self._turned_at = 0, now

    @property
    def _ahead(self) -> int:
        return min(MOST_AHEAD, max(LEAST_AHEAD, int(AHEAD_SECONDS * self._items_per_second)))

    def _room(self) -> dict[str, int]:
        """How many lines to claim for each model: none while enough are ready, or results pile up here."""
        room: dict[str, int] = {}
        if len(self._runner.unrecorded()) > MOST_UNRECORDED:
            return room
        for model in self._catalogue.models(allowed=None):
            num_ready, window = len(self._ready[model.name]), self._window(model.name)
            if window > 0 and num_ready <= self._ahead // 2:
                room[model.name] = window + self._ahead - self._num_running[model.name] - num_ready
        return room

    def _window(self, model: str) -> int:
        """How many lines may be under way: what the engines grant, and a few that wait at their door."""
        granted = self._directory.window(model, RequestClass.OFFLINE)
        return granted + BEYOND_WINDOW if granted > 0 else 0

    def _passed_over(self) -> set[BatchId]:
        now = asyncio.get_running_loop().time()
        self._held_up = {batch: until for batch, until in self._held_up.items() if until > now}
        return set(self._held_up)

    def _jobs(self) -> list[Job]:
        return [*self._running.values(), *(job for ready in self._ready.values() for job in ready)]

    def _known(self) -> set[LeaseKey]:
        """Of lines that this process runs, will run, or has results of that the store does not have yet."""
        given_back = {one.lease for one in self._given_back}
        return {job.item.lease for job in self._jobs()} | given_back | self._runner.unrecorded()

    def _take_in(self, turn: Turn) -> None:
        self._given_back += turn.unreadable
        for batch in turn.barred:
            self._hold_up(batch, BARRED_SECONDS)
        for job in turn.jobs:
            self._ready[job.model].append(job)
        stopped = turn.stopped
        self._drop(lambda job: job.item.batch in stopped)
        for task, job in self._running.items():
            if stopped.get(job.item.batch):
                task.cancel()
        self._fill()

    def _drop(self, is_dropped: Callable[[Job], bool]) -> None:
        """Gives back lines that are ready."""
        for model, ready in self._ready.items():
            self._given_back += [_given_back(job, NOW) for job in ready if is_dropped(job)]
            self._ready[model] = deque(job for job in ready if not is_dropped(job))

    # --- lines -------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Begins what there is room for, a few lines in each turn of the loop.

        Hundreds at once would hold up everybody else's requests, and the engine would wait for the last of
        them.
        """
        if not self._is_filling:
            self._is_filling = True
            asyncio.get_running_loop().call_soon(self._begin_some)

    def _begin_some(self) -> None:
        self._is_filling = False
        num_begun = 0
        for job in islice(self._startable(), BEGUN_AT_ONCE):
            self._begin(job)
            num_begun += 1
        if num_begun == BEGUN_AT_ONCE:
            self._fill()

    def _startable(self) -> Iterator[Job]:
        """Takes lines that are ready, as long as engines have room for one more."""
        for model, ready in self._ready.items():
            window = self._window(model) if ready and not self._is_stopping else 0
            while ready and self._num_running[model] < window:
                yield ready.popleft()

    def _begin(self, job: Job) -> None:
        task = asyncio.create_task(self._runner.run(job))
        self._running[task] = job
        self._num_running[job.model] += 1
        task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[Again | None]") -> None:
        job = self._running.pop(task)
        self._num_running[job.model] -= 1
        self._num_ended += 1
        if (retry := _outcome(task)) is not None:
            self._given_back.append(_given_back(job, retry))
            if retry.holds_up_batch:
                self._hold_up(job.item.batch, retry.after_seconds)
        self._fill()
        if self._may_find_more and len(self._ready[job.model]) <= self._ahead // 2:
            self._call.set()

    def _hold_up(self, batch: BatchId, seconds: float) -> None:
        """Its lines wait for a while, and keep no other's waiting."""
        until = asyncio.get_running_loop().time() + seconds
        self._held_up[batch] = max(until, self._held_up.get(batch, 0.0))
        self._drop(lambda job: job.item.batch == batch)


def _outcome(task: "asyncio.Task[Again | None]") -> Again | None:
    """When the line is to be run again, if it is."""
    if task.cancelled():
        return NOW
    if (error := task.exception()) is not None:
        logger.error("a line of a batch could not be run", exc_info=error)
        return Again(after_seconds=TURN_SECONDS, counts=True)
    return task.result()


def _given_back(job: Job, retry: Again) -> GivenBack:
    item = job.item
    return GivenBack(
        tenant=job.caller.tenant,
        batch=item.batch,
        line=item.line,
        attempt=item.attempt,
        after_seconds=retry.after_seconds,
        counts=retry.counts,
        share=job.share,
    )
