"""The engine's one thread of work: commands in, steps, outcomes out. Owns the scheduler and the runner.

    step():  drain commands -> scheduler.plan_step() -> runner.launch(plan) -> publish the step before
             -> collect -> scheduler.apply(plan, result);  once a second: guardrails

What a step brought is published, on a thread for that, while the next one computes. Blocks are only freed
between steps, after what wrote to them was collected: a step never writes to what was given away meanwhile.

Other threads talk to it through `submit`, `extend`, `cancel`, `disown` and `configure`, and read
`snapshot` and `progress`.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import assert_never

from engine.core.guard import Guard
from engine.core.guardrails import Mode, Move
from engine.core.limits import Limits
from engine.core.outcome import Broken, Ended, Outcome, Refusal, RefusalReason, Refused
from engine.core.rungs import Restrictions
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence, SequenceClass, WaitReason
from engine.core.service import TenantLoad
from engine.core.slo import SloReading
from engine.core.step import StepPlan, StepResult
from engine.errors import StepsFailed
from engine.runner.runner import Runner
from engine.telemetry import Telemetry

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.5  # how often an idle loop refreshes its snapshot
SNAPSHOT_SECONDS = 0.25
STALLED_AFTER_SECONDS = 10.0
HELD_SECONDS = 0.05  # how often it is asked again whether work that is held back may go on
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
class Extend:
    """More output of the sequence with this id is paid for, if it is this owner's."""

    owner: object
    sequence_id: str
    num_paid_tokens: int
    is_last: bool


@dataclass(frozen=True)
class Disown:
    """End everything of an owner that is gone."""

    owner: object
    asked_at: float


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What operators want of the engine, from the next step on. `revision` counts up with every change."""

    revision: int
    limits: Limits
    weights: Mapping[str, float]
    guardrail_mode: Mode = Mode.AUTOMATIC
    guardrail_level: int = 0


@dataclass(frozen=True)
class Configure:
    """Work by this configuration from now on."""

    configuration: Configuration


@dataclass(frozen=True)
class Stop:
    """Leave the loop, whatever is running."""


Command = Submit | Extend | Cancel | Disown | Configure | Stop


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The loop's state at one moment, for those who only look."""

    step: int
    running: dict[SequenceClass, int]
    waiting: dict[SequenceClass, int]
    num_blocks: int
    num_used_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_prefix_queried_tokens: int
    num_prefix_hit_tokens: int
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    slo: tuple[SloReading, ...]
    limits: Limits
    config_revision: int
    guardrail_mode: Mode
    guardrail_level: int
    restrictions: Restrictions
    guardrail_moves: tuple[Move, ...]
    waiting_reasons: Mapping[tuple[str, SequenceClass, WaitReason], int]
    tenants: tuple[TenantLoad, ...]
    service_rates: Mapping[str, float]  # charged tokens per second by tenant, of those served lately
    fairness: float | None


@dataclass(frozen=True)
class Progress:
    """Health as forward progress: the loop stands still when `since` stays while there is work.

    `since` is when the step counter last moved, or when work last came to an idle engine. Work that is held
    back on purpose (offline work while service levels are missed) is none that ought to move.
    """

    step: int
    has_work: bool
    since: float

    def is_healthy(self, now: float) -> bool:
        """Whether the loop moves, or has nothing to do."""
        return not self.has_work or now - self.since < STALLED_AFTER_SECONDS


class EngineLoop:
    """Runs steps until it is stopped. `publish` is told what each step brought, from any thread."""

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
        self._publisher = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._on_crash = on_crash
        self._clock = clock
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._live: dict[str, Sequence] = {}
        self._untold: list[tuple[int, list[Outcome], float]] = []  # step, what it brought, when
        self._guard = Guard(scheduler, telemetry.monitor, clock())
        self._config_revision = 0
        self._is_stuck = False  # there is work, but the latest step found none that may run
        self._step = 0
        self._is_stopping = False
        self._is_draining = False
        self._num_failed_in_a_row = 0
        self._previous_step_ended_at: float | None = None  # none when the loop has stood still since
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

    def extend(self, owner: object, sequence_id: str, num_paid_tokens: int, *, is_last: bool) -> None:
        """Lets a sequence of `owner` go on to so many tokens of output. Unknown ids are ignored."""
        self._commands.put(Extend(owner, sequence_id, num_paid_tokens, is_last))

    def disown(self, owner: object) -> None:
        """Ends everything that belongs to `owner` within one step."""
        self._commands.put(Disown(owner, self._clock()))

    def configure(self, configuration: Configuration) -> None:
        """Changes limits, weights and guardrails before the next step. Older revisions are ignored."""
        self._commands.put(Configure(configuration))

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
        finally:
            self._publisher.shutdown()

    def step(self) -> None:
        """One round: commands, time limits, one step of the model."""
        was_busy = self._scheduler.has_work
        self._drain_commands()
        now = self._clock()
        self._tell(self._scheduler.expire(now), now)
        self._log(self._guard.watch(now))
        self._note_progress()  # before computing too: a first step that hangs must show
        plan = self._scheduler.plan_step(now)
        self._is_stuck = plan is None and self._scheduler.has_work
        if plan is not None:
            self._tell(self._compute(plan), self._clock())
        elif was_busy and not self._scheduler.has_work:
            self._scheduler.check_integrity()
        if plan is None or not self._scheduler.has_work:
            self._publish_untold()  # no step follows that it could overlap with
            self._previous_step_ended_at = None
        self._note_progress()

    def _drain_commands(self) -> None:
        """Carries out what other threads asked for; waits for it when there is nothing else to do."""
        try:
            if self._scheduler.has_work and not self._is_stuck:
                command = self._commands.get_nowait()
            else:
                command = self._commands.get(timeout=HELD_SECONDS if self._is_stuck else IDLE_SECONDS)
            while True:
                self._carry_out(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _carry_out(self, command: Command) -> None:
        match command:
            case Submit(sequence):
                self._submit(sequence)
            case Extend():
                self._extend(command)
            case Cancel(owner, sequence_id, asked_at):
                self._cancel(self._named(owner, sequence_id), asked_at)
            case Disown(owner, asked_at):
                owned = [sequence for sequence in self._live.values() if sequence.owner is owner]
                self._cancel(owned, asked_at)
            case Configure(configuration):
                self._configure(configuration)
            case Stop():
                self._is_stopping = True
            case _:
                assert_never(command)

    def _named(self, owner: object, sequence_id: str) -> list[Sequence]:
        """The sequence with that id, if it lives and is this owner's."""
        sequence = self._live.get(sequence_id)
        return [] if sequence is None or sequence.owner is not owner else [sequence]

    def _submit(self, sequence: Sequence) -> None:
        now = self._clock()
        refusal = self._refusal(sequence, now)
        if refusal is None:
            self._live[sequence.id] = sequence
        else:
            self._untold.append((self._step, [Refused(sequence, refusal)], now))

    def _refusal(self, sequence: Sequence, now: float) -> Refusal | None:
        if self._is_draining:
            return Refusal(RefusalReason.DRAINING, "the engine is shutting down")
        if sequence.id in self._live:
            return Refusal(RefusalReason.INVALID_REQUEST, f"request id {sequence.id} is in use")
        return self._scheduler.submit(sequence, now)

    def _extend(self, command: Extend) -> None:
        for sequence in self._named(command.owner, command.sequence_id):
            end = self._scheduler.extend(sequence, command.num_paid_tokens, is_last=command.is_last)
            self._tell([] if end is None else [end], self._clock())

    def _cancel(self, sequences: list[Sequence], asked_at: float) -> None:
        outcomes = [self._scheduler.cancel(sequence) for sequence in sequences]
        now = self._clock()
        for _ in outcomes:
            self._telemetry.cancelled(now - asked_at)
        self._tell(outcomes, now)

    def _configure(self, configuration: Configuration) -> None:
        if configuration.revision <= self._config_revision:
            return
        now = self._clock()
        self._config_revision = configuration.revision
        self._scheduler.order_weights(configuration.weights)
        self._tell(self._scheduler.set_limits(configuration.limits), now)
        mode, level = configuration.guardrail_mode, configuration.guardrail_level
        self._log(self._guard.order(mode, level, now))
        self.snapshot = self._take_snapshot()
        logger.info("configured", extra={"revision": configuration.revision})

    def _log(self, moves: list[Move]) -> None:
        for move in moves:
            levels = {"from_level": int(move.from_level), "to_level": int(move.to_level)}
            logger.warning("guardrails: %s", move.detail, extra={**levels, "is_dry_run": move.is_dry_run})

    def _compute(self, plan: StepPlan) -> list[Outcome]:
        """What a step brings. One that fails is tried once more without its newest members."""
        try:
            return self._run_plan(plan)
        except Exception as error:  # whatever a model raises must not take the others down
            logger.exception("step %d failed", plan.step_id)
            self._previous_step_ended_at = None
            reason = f"the step failed: {error}"
        suspects = self._scheduler.newest(plan)
        others = plan.without(suspects)
        if others.rows:
            try:
                outcomes = self._run_plan(others)
            except Exception:
                logger.exception("step %d failed without its newest members, too", plan.step_id)
            else:
                return [*outcomes, *self._scheduler.fail(suspects, reason)]
        self._num_failed_in_a_row += 1
        if (
            self._num_failed_in_a_row == MAX_FAILED_STEPS
        ):  # not the requests' fault: a device that is lost, say
            raise StepsFailed(reason)  # a new process may fare better
        return self._scheduler.fail([row.sequence_id for row in plan.rows], reason)

    def _run_plan(self, plan: StepPlan) -> list[Outcome]:
        started_at = self._clock()
        in_flight = self._runner.launch(plan)
        publishing = self._publisher.submit(self._publish_untold)
        try:
            result: StepResult = self._runner.collect(in_flight)
        finally:
            publishing.result()  # what it tells of must not change meanwhile
        self._num_failed_in_a_row = 0
        now = self._clock()
        # Between two tokens lies all that the loop does, so the model of a step's time learns from all of it.
        before = self._previous_step_ended_at
        self._scheduler.observe(plan, now - (started_at if before is None else before))
        self._previous_step_ended_at = now
        self._telemetry.step_done(plan, seconds=now - started_at, now=now)
        self._step = plan.step_id
        return self._scheduler.apply(plan, result, now)

    def _tell(self, outcomes: list[Outcome], now: float) -> None:
        if not outcomes:
            return
        for outcome in outcomes:
            if isinstance(outcome, Ended | Refused | Broken):
                del self._live[outcome.sequence.id]
        self._untold.append((self._step, outcomes, now))

    def _publish_untold(self) -> None:
        untold, self._untold = self._untold, []
        for step, outcomes, now in untold:
            self._telemetry.record(outcomes, now)
            self._publish(step, outcomes)

    # --- what others may see ---------------------------------------------------------------------------

    def _note_progress(self) -> None:
        now, before = self._clock(), self.progress
        has_work = self._scheduler.has_work and not self._scheduler.is_held_back
        moved = self._step != before.step or (has_work and not before.has_work) or not has_work
        self.progress = Progress(self._step, has_work, now if moved else before.since)
        if now - self._snapshot_at >= SNAPSHOT_SECONDS or not self._scheduler.has_work:
            self._snapshot_at = now
            self.snapshot = self._take_snapshot()

    def _take_snapshot(self) -> Snapshot:
        now, scheduler, cache = self._clock(), self._scheduler, self._scheduler.kv_cache
        num_empty = cache.num_free_blocks - cache.num_cached_blocks
        running = {each: scheduler.num_running(each) for each in SequenceClass}
        waiting = {each: scheduler.num_waiting(each) for each in SequenceClass}
        self._telemetry.load(running=running, waiting=waiting)
        self._telemetry.blocks(
            used=cache.num_used_blocks, free=num_empty, cached=cache.num_cached_blocks, now=now
        )
        loads, reasons = scheduler.tenant_loads(), scheduler.waiting_counts()
        names = {load.tenant: load.name for load in loads}
        named: Counter[tuple[str, SequenceClass, WaitReason]] = Counter()
        for (tenant, sequence_class, reason), count in reasons.items():
            named[names[tenant], sequence_class, reason] += count  # two tenants may have one name
        self._telemetry.waiting(named)
        self._telemetry.services(loads, now=now)
        self._telemetry.figures(scheduler.figures, num_evicted_blocks=cache.num_evicted_blocks)
        self._telemetry.guardrail_level(self._guard.rails.level)
        prompt, generated = self._telemetry.throughput.per_second(now)
        return Snapshot(
            step=self._step,
            running=running,
            waiting=waiting,
            num_blocks=cache.num_blocks,
            num_used_blocks=cache.num_used_blocks,
            num_free_blocks=num_empty,
            num_cached_blocks=cache.num_cached_blocks,
            num_prefix_queried_tokens=scheduler.figures.num_prefix_queried_tokens,
            num_prefix_hit_tokens=scheduler.figures.num_prefix_hit_tokens,
            prompt_tokens_per_second=prompt,
            generated_tokens_per_second=generated,
            slo=self._telemetry.monitor.readings(now),
            limits=scheduler.limits,
            config_revision=self._config_revision,
            guardrail_mode=self._guard.rails.mode,
            guardrail_level=self._guard.rails.level,
            restrictions=self._guard.rails.restrictions,
            guardrail_moves=tuple(self._guard.rails.recent_moves),
            waiting_reasons=reasons,
            tenants=tuple(loads),
            service_rates=self._telemetry.fairness.rates,
            fairness=self._telemetry.fairness.index,
        )
