"""Guardrails beside a simulated engine: samples into windows, one tick a second, as `engine.loop` does it."""

from engine.core.guardrails import Guardrails, Move
from engine.core.outcome import Outcome, RefusalReason, Refused, Sampled
from engine.core.scheduler import Scheduler
from engine.core.sequence import SequenceClass
from engine.core.slo import Judged, SloMonitor, SloTargets

BITING = (RefusalReason.LONG_CONTEXT_DEGRADED, RefusalReason.RATE_SHARE)  # what only guardrails refuse


class GuardedEngine:
    """Watches what interactive requests meet and restricts the scheduler accordingly."""

    def __init__(self, scheduler: Scheduler, targets: SloTargets) -> None:
        self.moves: list[Move] = []
        self.levels: list[tuple[float, int]] = []  # once a second
        self.judged: list[tuple[float, tuple[Judged, ...]]] = []
        self._scheduler = scheduler
        self._targets = targets
        self._monitor = SloMonitor(targets, now=0.0)
        self._guardrails = Guardrails()
        self._is_biting = False

    def saw(self, outcomes: list[Outcome], now: float) -> None:
        """Counts interactive samples and refusals."""
        window = self._monitor.window(now)
        for outcome in outcomes:
            if not outcome.sequence.is_interactive:
                continue
            if isinstance(outcome, Refused):
                window.num_refused += 1
                self._is_biting |= outcome.refusal.reason in BITING
            elif isinstance(outcome, Sampled) and outcome.is_first:
                scheduled_at = outcome.sequence.scheduled_at
                assert scheduled_at is not None, "a token was sampled, so a step was scheduled"
                window.num_admitted += 1
                window.ttft.add(outcome.waited_seconds * 1e3)
                window.queue_wait.add((scheduled_at - outcome.sequence.arrived_at) * 1e3)
            elif isinstance(outcome, Sampled):
                window.itl.add(outcome.waited_seconds * 1e3)

    def tick(self, now: float) -> None:
        """Judges, moves, restricts."""
        cache = self._scheduler.kv_cache
        window = self._monitor.window(now)
        window.kv_cache_utilization = max(
            window.kv_cache_utilization, cache.num_used_blocks / cache.num_blocks
        )
        late_seconds = self._targets.queue_wait_p95_ms / 1e3
        ages = self._scheduler.waiting_ages(SequenceClass.INTERACTIVE, now, late_seconds=late_seconds)
        self._monitor.note_waiting_age(now, *ages)
        judged = self._monitor.judged(now)
        self.moves += self._guardrails.tick(judged, now, is_biting=self._is_biting)
        self._is_biting = False
        self._scheduler.restrict(self._guardrails.restrictions)
        self.levels.append((now, int(self._guardrails.level)))
        self.judged.append((now, judged))
