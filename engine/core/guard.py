"""Keeps watch once a second: judges what interactive requests meet, and moves the guardrails accordingly."""

from engine.core.guardrails import Guardrails, Mode, Move
from engine.core.scheduler import Scheduler
from engine.core.sequence import SequenceClass
from engine.core.slo import SloMonitor

GUARD_SECONDS = 1.0
PRESSURE_SECONDS = 3.0
FULL = 0.9  # of the most that was ever served lately: demand beyond it would wait
PEAK_FADES_SECONDS = 120.0


class Guard:
    """The monitor's judgement and the ladder's moves, applied to one scheduler."""

    def __init__(self, scheduler: Scheduler, monitor: SloMonitor, now: float) -> None:
        self.rails = Guardrails()
        self._scheduler = scheduler
        self._monitor = monitor
        self._watched_at = now
        self._peak_service = 0.0  # charged tokens per second

    def watch(self, now: float) -> list[Move]:
        """Moves if a second has gone by and it is time to; what is restricted holds from the next step on."""
        elapsed = now - self._watched_at
        if elapsed < GUARD_SECONDS:
            return []
        self._watched_at = now
        late_seconds = self._monitor.targets.queue_wait_p95_ms / 1000
        ages = self._scheduler.waiting_ages(SequenceClass.INTERACTIVE, now, late_seconds=late_seconds)
        self._monitor.note_waiting_age(now, *ages)
        is_biting = self._turns_away_what_would_wait(now, elapsed)
        return self._restrict(self.rails.tick(self._monitor.judged(now), now, is_biting=is_biting))

    def order(self, mode: Mode, level: int, now: float) -> list[Move]:
        """What an operator orders."""
        return self._restrict(self.rails.order(mode, level, now))

    def _restrict(self, moves: list[Move]) -> list[Move]:
        self._scheduler.restrict(self.rails.restrictions)
        return moves

    def _turns_away_what_would_wait(self, now: float, elapsed: float) -> bool:
        """Whether what was served and what guardrails refused is together more than the engine can serve.

        Refusing then is of use; refusing somebody although there was room is not.
        """
        served = self._scheduler.served_per_second(now, PRESSURE_SECONDS)
        turned_away = self._scheduler.turned_away_per_second(now, PRESSURE_SECONDS)
        faded = self._peak_service * 0.5 ** (elapsed / PEAK_FADES_SECONDS)
        self._peak_service = max(served, faded)
        return turned_away > 0 and served + turned_away > FULL * self._peak_service
