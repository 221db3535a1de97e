"""What one gateway process does for everybody's batches: lost leases, ends, files, figures, retention.

Each turn is some short transactions, a bounded piece of work each. Nothing here relies on being alone: of two
who believe that they lead, each only does what the rows still ask for.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.batch_files import BatchFiles
from gateway.batch_finishing import BatchFinishing
from gateway.batch_leases import DeadLeases
from gateway.batches import endings, figures, outputs
from gateway.batches.figures import Sample
from gateway.batches.progress import items_per_second
from gateway.batches.status import OPEN, EndsAs
from gateway.db import Database
from gateway.filing import Filing
from gateway.keys import queries as keys
from gateway.leadership import Duty, Leadership
from gateway.metrics import GatewayMetrics
from gateway.rhythm import Rhythm

LOCK: Final = 1
SWEEP_SECONDS: Final = 1.0
SAMPLE_SECONDS: Final = 5.0
KEEP_SECONDS: Final = 60.0
ORPHAN_SECONDS: Final = 600.0  # every blob is looked at
FINISH_AGAIN_SECONDS: Final = 10.0
MOST_BATCHES: Final = 500  # in one transaction
MOST_ITEMS: Final = 5_000


class BatchSweep:
    """One per gateway process; one of all leads. Batches are kept for `keep_days` after their end."""

    def __init__(
        self,
        database: Database,
        filing: Filing,
        metrics: GatewayMetrics,
        *,
        keep_days: int,
        keep_files_days: int,
    ) -> None:
        self._database = database
        self._filing = filing
        self._finishing = BatchFinishing(
            database, filing.store, keep_days=keep_files_days, on_ended=partial(count_ended, metrics)
        )
        self._metrics = metrics
        self._keep_days = keep_days
        self._leadership = Leadership(database, LOCK, self._duties)

    async def start(self) -> None:
        """Leads, or waits to."""
        await self._leadership.start()

    async def stop(self) -> None:
        """Ends what is under way."""
        await self._leadership.stop()

    def _duties(self) -> Sequence[Duty]:
        """Of one term."""
        return (
            Duty(
                trouble="leases of dead workers do not end",
                every_seconds=SWEEP_SECONDS,
                turn=DeadLeases(self._database).turn,
            ),
            Duty(trouble="batches do not end", every_seconds=SWEEP_SECONDS, turn=self.end_what_is_over),
            Duty(
                trouble="ended batches get no files",
                every_seconds=SWEEP_SECONDS,
                again_after_seconds=FINISH_AGAIN_SECONDS,
                turn=self._finishing.turn,
            ),
            Duty(trouble="batches are not watched", every_seconds=SAMPLE_SECONDS, turn=self.sample),
            Duty(trouble="old files and batches stay", every_seconds=KEEP_SECONDS, turn=self.forget_old),
            Duty(trouble="blobs without a row stay", every_seconds=ORPHAN_SECONDS, turn=self._remove_orphans),
        )

    async def end_what_is_over(self, term: Rhythm) -> None:
        """Windows close, what is cancelled ends, what has all its answers waits for its files."""
        await self._cancel_of_ended_keys()
        async with self._database.system_transaction() as connection:
            await endings.close_windows(connection, most=MOST_BATCHES)
        async with self._database.system_transaction() as connection:
            await endings.end_cancelled(connection, most=MOST_BATCHES)
        while not term.is_over and await self._leave_unrun():
            pass
        async with self._database.system_transaction() as connection:
            await endings.finalize_answered(connection, most=MOST_BATCHES)

    async def sample(self, _: Rhythm) -> None:
        """How fast batches get on, and how many there are."""
        async with self._database.system_transaction() as connection:
            samples = await figures.lock_due_samples(
                connection, every_seconds=SAMPLE_SECONDS / 2, most=MOST_BATCHES
            )
            if samples:
                await figures.save_rates(connection, samples, [_rate(sample) for sample in samples])
            open_now = await figures.open_batches(connection)
        for status in OPEN:
            self._metrics.batches_open.labels(status).set(open_now.num_by_status.get(status, 0))
        self._metrics.oldest_batch_age.set(open_now.oldest_age_seconds)

    async def forget_old(self, term: Rhythm) -> None:
        """Files whose time is up go, and batches that ended long ago."""
        await self._finishing.clear_up(term)
        while not term.is_over and await self._filing.delete_expired():
            pass
        while not term.is_over and await self._forget_batches():
            pass

    async def _leave_unrun(self) -> int:
        async with self._database.system_transaction() as connection:
            return await endings.leave_unrun(connection, most=MOST_ITEMS)

    async def _forget_batches(self) -> int:
        async with self._database.system_transaction() as connection:
            return await outputs.forget_batches(connection, days=self._keep_days, most=MOST_BATCHES)

    async def _remove_orphans(self, term: Rhythm) -> None:
        await self._filing.remove_orphans(term)

    async def _cancel_of_ended_keys(self) -> None:
        """A batch runs on behalf of the key that submitted it. Disabled tenants' batches wait instead."""
        async with self._database.system_transaction() as connection:
            running = await endings.keys_of_running(connection)
            ended = await keys.ended_among(connection, running) if running else ()
            if ended:
                await endings.cancel_of_keys(connection, ended, most=MOST_BATCHES)


def count_ended(metrics: GatewayMetrics, ends_as: EndsAs, files: BatchFiles) -> None:
    """Counts the items of a batch by what became of them."""
    metrics.batch_items.labels("completed").inc(files.num_completed)
    metrics.batch_items.labels("failed").inc(files.num_failed)
    metrics.batch_items.labels(ends_as).inc(files.num_unrun)


def _rate(sample: Sample) -> float | None:
    """Nothing is known from a first look, or from two at the same moment."""
    if not sample.elapsed_seconds:
        return sample.items_per_second
    return items_per_second(
        sample.items_per_second,
        num_gained=sample.num_done - sample.num_before,
        elapsed_seconds=sample.elapsed_seconds,
    )
