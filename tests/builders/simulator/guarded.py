"""Guardrails beside a simulated engine: samples into windows, one tick a second, as `engine.loop` does it."""

from engine.core.guard import Guard
from engine.core.guardrails import Move
from engine.core.outcome import Outcome, Refused, Sampled
from engine.core.scheduler import Scheduler
from engine.core.slo import Judged, SloMonitor, SloTargets


class GuardedEngine:
    """Watches what interactive requests meet and restricts the scheduler accordingly."""

    def __init__(self, scheduler: Scheduler, targets: SloTargets) -> None:
        self.moves: list[Move] = []
        self.levels: list[tuple[float, int]] = []  # once a second
        self.judged: list[tuple[float, tuple[Judged, ...]]] = []
        self._scheduler = scheduler
        self._monitor = SloMonitor(targets, now=0.0)
        self._guard = Guard(scheduler, self._monitor, now=0.0)

    def saw(self, outcomes: list[Outcome], now: float) -> None:
        """Counts interactive samples and refusals."""
        window = self._monitor.window(now)
        for outcome in outcomes:
            if not outcome.sequence.is_interactive:
                continue
            if isinstance(outcome, Refused):
                window.num_refused += 1
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
        self.moves += self._guard.watch(now)
        self.levels.append((now, int(self._guard.rails.level)))
        self.judged.append((now, self._monitor.judged(now)))
