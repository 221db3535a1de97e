"""The engine's one thread of work: commands in, steps, outcomes out. Owns the scheduler and the runner.

    step():  drain commands -> scheduler.plan_step() -> runner.launch(plan) -> collect
             -> scheduler.apply(plan, result) -> publish

Other threads talk to it through `submit`, `cancel` and `disown`, and read `snapshot` and `progress`.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from engine.core.outcome import Broken, Ended, Outcome, Refusal, RefusalReason, Refused
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence, SequenceClass
from engine.core.slo import SloReading
from engine.core.step import StepPlan
from engine.runner.runner import Runner
from engine.telemetry import Telemetry

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.5  # how often an idle loop refreshes its snapshot
SNAPSHOT_SECONDS = 0.25
STALLED_AFTER_SECONDS = 10.0
MAX_FAILED_STEPS = 8

Publish = Callable[[int, list[Outcome]], None]


@dataclass(frozen=True)
class Submit:
    """Take this sequence in."""

    sequence: Sequence


@dataclass(frozen=True)
class Cancel:
    """End the sequence with this id, if it is this owner's; asked at `asked_at`."""

    owner: object
    sequence_id: str
    asked_at: float


@dataclass(frozen=True)
class Disown:
    """End everything of an owner that is gone."""

    owner: object
    asked_at: float


@dataclass(frozen=True)
class Stop:
    """Leave the loop, whatever is running."""


Command = Submit | Cancel | Disown | Stop


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The loop's state at one moment, for those who only look."""

    step: int
    running: dict[SequenceClass, int]
    waiting: dict[SequenceClass, int]
    num_blocks: int
    num_used_blocks: int
    num_free_blocks: int
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    slo: tuple[SloReading, ...]


@dataclass(frozen=True)
class Progress:
    """Health as forward progress: the loop stands still when `since` stays while there is work."""

    step: int
    has_work: bool
    since: float

    def is_healthy(self, now: float) -> bool:
        """Whether the loop moves, or has nothing to do."""
        return not self.has_work or now - self.since < STALLED_AFTER_SECONDS


class EngineLoop:
    """Runs steps until it is stopped. `publish` is called on its thread with what each step brought."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        telemetry: Telemetry,
        publish: Publish,
        on_crash: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._telemetry = telemetry
        self._publish = publish
        self._on_crash = on_crash
        self._clock = clock
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._live: dict[str, Sequence] = {}
        self._step = 0
        self._is_stopping = False
        self._is_draining = False
        self._num_failed_in_a_row = 0
        self.progress = Progress(step=0, has_work=False, since=clock())
        self.snapshot = self._take_snapshot()
        self._snapshot_at = clock()
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)

    # --- for other threads -----------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the loop's thread."""
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Hands a sequence in; what becomes of it is published."""
        self._commands.put(Submit(sequence))

    def cancel(self, owner: object, sequence_id: str) -> None:
        """Ends a sequence of `owner` within one step. Unknown ids, and those of others, are ignored."""
        self._commands.put(Cancel(owner, sequence_id, self._clock()))

    def disown(self, owner: object) -> None:
        """Ends everything that belongs to `owner` within one step."""
        self._commands.put(Disown(owner, self._clock()))

    def drain(self) -> None:
        """From now on refuse what comes new; what is there goes on."""
        self._is_draining = True

    def stop(self) -> None:
        """Ends the loop after the step it is in, and waits for it."""
        self._commands.put(Stop())
        self._thread.join()

    # --- the loop --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self.step()
        except BaseException as error:  # a bug: the process must not live on without its loop
            logger.exception("the engine's loop crashed")
            self._on_crash(error)

    def step(self) -> None:
        """One round: commands, time limits, one step of the model."""
        was_busy = self._scheduler.has_work
        self._drain_commands()
        self._note_progress()  # before computing too: a first step that hangs must show
        now = self._clock()
        self._tell(self._scheduler.expire(now), now)
        plan = self._scheduler.plan_step(now)
        if plan is not None:
            self._tell(self._compute(plan), self._clock())
        elif was_busy:
            self._scheduler.check_integrity()
        self._note_progress()

    def _drain_commands(self) -> None:
        """Carries out what other threads asked for; waits for it when there is nothing else to do."""
        try:
            if self._scheduler.has_work:
                command = self._commands.get_nowait()
            else:
                command = self._commands.get(timeout=IDLE_SECONDS)
            while True:
                self._carry_out(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _carry_out(self, command: Command) -> None:
        match command:
            case Submit(sequence):
                self._submit(sequence)
            case Cancel(owner, sequence_id, asked_at):
                named = self._live.get(sequence_id)
                if named is not None and named.owner is owner:
                    self._cancel([named], asked_at)
            case Disown(owner, asked_at):
                owned = [sequence for sequence in self._live.values() if sequence.owner is owner]
                self._cancel(owned, asked_at)
            case Stop():
                self._is_stopping = True
            case _:
                assert_never(command)

    def _submit(self, sequence: Sequence) -> None:
        refusal = self._refusal(sequence)
        if refusal is None:
            self._live[sequence.id] = sequence
        else:
            outcome = Refused(sequence, refusal)
            self._telemetry.record([outcome], self._clock())
            self._publish(self._step, [outcome])

    def _refusal(self, sequence: Sequence) -> Refusal | None:
        if self._is_draining:
            return Refusal(RefusalReason.DRAINING, "the engine is shutting down")
        if sequence.id in self._live:
            return Refusal(RefusalReason.INVALID_REQUEST, f"request id {sequence.id} is in use")
        return self._scheduler.submit(sequence)

    def _cancel(self, sequences: list[Sequence], asked_at: float) -> None:
        outcomes = [self._scheduler.cancel(sequence) for sequence in sequences]
        now = self._clock()
        for _ in outcomes:
            self._telemetry.cancelled(now - asked_at)
        self._tell(outcomes, now)

    def _compute(self, plan: StepPlan) -> list[Outcome]:
        started_at = self._clock()
        try:
            result = self._runner.collect(self._runner.launch(plan))
        except Exception as error:  # whatever a model raises must not take the others down
            logger.exception("step %d failed", plan.step_id)
            self._num_failed_in_a_row += 1
            if self._num_failed_in_a_row == MAX_FAILED_STEPS:
                raise  # not the requests' fault: a device that is lost, say; a new process may fare better
            return self._scheduler.fail(plan, f"the step failed: {error}")
        self._num_failed_in_a_row = 0
        now = self._clock()
        self._telemetry.step_done(plan, seconds=now - started_at, now=now)
        self._step = plan.step_id
        return self._scheduler.apply(plan, result, now)

    def _tell(self, outcomes: list[Outcome], now: float) -> None:
        if not outcomes:
            return
        for outcome in outcomes:
            if isinstance(outcome, Ended | Refused | Broken):
                del self._live[outcome.sequence.id]
        self._telemetry.record(outcomes, now)
        self._publish(self._step, outcomes)

    # --- what others may see ---------------------------------------------------------------------------

    def _note_progress(self) -> None:
        now = self._clock()
        self.progress = Progress(step=self._step, has_work=self._scheduler.has_work, since=now)
        if now - self._snapshot_at >= SNAPSHOT_SECONDS or not self._scheduler.has_work:
            self._snapshot_at = now
            self.snapshot = self._take_snapshot()

    def _take_snapshot(self) -> Snapshot:
        now, scheduler, cache = self._clock(), self._scheduler, self._scheduler.kv_cache
        running = {each: scheduler.num_running(each) for each in SequenceClass}
        waiting = {each: scheduler.num_waiting(each) for each in SequenceClass}
        self._telemetry.load(running=running, waiting=waiting)
        self._telemetry.blocks(used=cache.num_used_blocks, free=cache.num_free_blocks, now=now)
        prompt, generated = self._telemetry.throughput.per_second(now)
        return Snapshot(
            step=self._step,
            running=running,
            waiting=waiting,
            num_blocks=cache.num_blocks,
            num_used_blocks=cache.num_used_blocks,
            num_free_blocks=cache.num_free_blocks,
            prompt_tokens_per_second=prompt,
            generated_tokens_per_second=generated,
            slo=self._telemetry.monitor.readings(now),
        )
