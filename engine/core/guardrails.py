"""What is given up, and in which order, when service levels are missed. Pure: moves a level, nobody's work.

Six rungs, one step each three seconds, and hysteresis on the way down. Each measure climbs only as far as it
helps, see `_HIGHEST`. No engine that we know of does this; the ladder is our own design.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from engine.core.rungs import ENTERED, LEFT, LIMIT_SCALE, Restrictions, Rung
from engine.core.slo import KV_UTILIZATION, QUEUE_WAIT, Judged

__all__ = ["Guardrails", "Mode", "Move", "Restrictions", "Rung"]

SECONDS_PER_RUNG = 3.0
REOPENS_AFTER_SECONDS = 30.0  # a rung that was left is not entered again before
RECOVERY_SHARE = 0.8  # of its target: what a measure must be below before a rung is left
MAX_BITING_SECONDS = 300.0  # how long a rung that works is kept, before it is tried whether it must be
IDLE_SECONDS = 30.0  # how long refusing nobody may be kept up
NUM_RECENT_MOVES = 32
REJECT_RATE = "admission_reject_rate_max"
ITL = "itl_p95_ms"


class Mode(StrEnum):
    """Who moves the guardrails; values as on the wire. A dry run tells moves and restricts nothing."""

    AUTOMATIC = "automatic"
    DRY_RUN = "dry_run"
    MANUAL = "manual"


# How far a measure may climb: no further than giving up more would improve it.
# * Waiting (TTFT, queue wait) ends when there is less to do: up to refusing tenants over their share.
# * ITL falls with shorter prompts and smaller steps. Refusing who waits does nothing for who runs.
# * A full cache alone harms nobody, and admission bounds it: offline blocks are taken back, that is all.
# * Rejections must never cause rejections.
_HIGHEST = {
    "ttft_p95_ms": Rung.REFUSE_OVER_SHARE,
    QUEUE_WAIT: Rung.REFUSE_OVER_SHARE,
    ITL: Rung.SCALE_LIMITS,
    KV_UTILIZATION: Rung.PREEMPT_OFFLINE,
    REJECT_RATE: Rung.PAUSE_OFFLINE,
}


@dataclass(frozen=True)
class Move:
    """One move and its cause, or an alert (`from_level` equals `to_level`). `at` is monotonic, in seconds.

    `measure` names a key of `[slo]`; it is empty when an operator moved, or when nothing was measured.
    """

    number: int
    at: float
    from_level: Rung
    to_level: Rung
    measure: str
    value: float | None
    target: float | None
    detail: str
    is_dry_run: bool


class Guardrails:
    """Climbs and leaves rungs by what is judged. To be ticked about every second; any spacing is right.

    At most one rung in three seconds, and none again within 30 s of leaving it. A rung is left when every
    measure that it helps is below 80 % of its target (or too few samples to count).
    """

    def __init__(self) -> None:
        self._mode = Mode.AUTOMATIC
        self._rung = Rung.NORMAL  # in a dry run: the one it would be
        self._moved_at = float("-inf")
        self._bitten_at = float("-inf")
        self._left_at: dict[Rung, float] = {}
        self._num_moves = 0
        self._is_rejecting_told = False
        self.recent_moves: deque[Move] = deque(maxlen=NUM_RECENT_MOVES)

    @property
    def mode(self) -> Mode:
        """Who moves."""
        return self._mode

    @property
    def level(self) -> Rung:
        """The level in force."""
        return Rung.NORMAL if self._mode is Mode.DRY_RUN else self._rung

    @property
    def restrictions(self) -> Restrictions:
        """What the level in force takes away."""
        return Restrictions(self.level)

    def tick(self, judged: Sequence[Judged], now: float, *, is_biting: bool = False) -> list[Move]:
        """Moves by at most one rung, and alerts once when a rejection rate in breach can move nothing.

        `is_biting`: what the rung in force refused or held within the last few seconds is more than the
        engine could have taken in besides: without the rung, levels would be missed again. To refuse
        somebody while there is room for all is not biting. Counts from SCALE_LIMITS on.
        """
        if is_biting:
            self._bitten_at = now
        moves = [] if self._mode is Mode.MANUAL else self._automatic_move(judged, now, is_biting=is_biting)
        return moves + self._alert(judged, now)

    def order(self, mode: Mode, level: int, now: float) -> list[Move]:
        """What an operator orders; `level` (0 to 5, else ValueError) counts in MANUAL only. Idempotent.

        AUTOMATIC goes on from the level in force, DRY_RUN from the same level, but restricts nothing.
        """
        before, rung = self.level, Rung(level)
        if mode is not self._mode and self._mode is Mode.DRY_RUN:
            self._rung = Rung.NORMAL  # the rungs of a dry run were never entered, so none was left
            self._left_at.clear()
        self._mode = mode
        match mode:
            case Mode.MANUAL:
                self._enter(rung, now)
                detail = f"An operator set level {level}."
            case Mode.DRY_RUN:
                detail = "An operator ordered a dry run: nothing is restricted."
            case Mode.AUTOMATIC:
                detail = "An operator ordered automatic moves."
            case _:
                assert_never(mode)
        return self._tell(now, before, None, detail, is_dry_run=False) if self.level != before else []

    def _automatic_move(self, judged: Sequence[Judged], now: float, *, is_biting: bool) -> list[Move]:
        if now - self._moved_at < SECONDS_PER_RUNG:
            return []
        before = self._rung
        cause = self._reason_to_climb(judged, now)
        if cause is not None:
            self._enter(Rung(before + 1), now)
            self._is_rejecting_told |= cause.name == REJECT_RATE
            return self._tell_measured(now, before, cause, ENTERED[self._rung])
        if before is Rung.NORMAL or self._is_held(judged, now, is_biting=is_biting):
            return []
        nearest = max(self._keepers(judged, now), key=lambda each: each.share, default=None)
        self._enter(Rung(before - 1), now)
        return self._tell_measured(now, before, nearest, LEFT[before])

    def _reason_to_climb(self, judged: Sequence[Judged], now: float) -> Judged | None:
        """The measure furthest over its target for which the next rung is of use, if that is open."""
        if self._rung is Rung.REFUSE_OVER_SHARE or not self._is_open(Rung(self._rung + 1), now):
            return None
        reasons = [each for each in judged if _highest(each) > self._rung and _is_breach(each)]
        return max(reasons, key=lambda each: each.share, default=None)

    def _is_open(self, rung: Rung, now: float) -> bool:
        return now - self._left_at.get(rung, float("-inf")) >= REOPENS_AFTER_SECONDS

    def _keepers(self, judged: Sequence[Judged], now: float) -> list[Judged]:
        """The measures that keep the present rung up while they are not well below their targets.

        Smaller limits make waiting longer. So on the way down from REFUSE_OVER_SHARE waiting does not keep
        them small: a load that fits the full limits but not the scaled ones would else never be let go.
        """
        if self._rung is Rung.SCALE_LIMITS and not self._is_open(Rung.REFUSE_OVER_SHARE, now):
            return [each for each in judged if each.name == ITL]
        return [each for each in judged if _highest(each) >= self._rung]

    def _is_held(self, judged: Sequence[Judged], now: float, *, is_biting: bool) -> bool:
        """Whether the present rung is still of use.

        Levels are fine because a rung works: leaving it then would miss them for the 30 s it stays closed.
        """
        share = max((each.share for each in self._keepers(judged, now)), default=0.0)
        works = is_biting and now - self._moved_at < MAX_BITING_SECONDS
        if self._rung is Rung.REFUSE_OVER_SHARE:
            is_idle = now - max(self._bitten_at, self._moved_at) >= IDLE_SECONDS
            return works or (share >= RECOVERY_SHARE and (self._mode is Mode.DRY_RUN or not is_idle))
        if self._rung is Rung.SCALE_LIMITS and works:
            return share >= RECOVERY_SHARE * LIMIT_SCALE  # at full limits ITL would be that much higher
        return share >= RECOVERY_SHARE

    def _alert(self, judged: Sequence[Judged], now: float) -> list[Move]:
        """Tells once per breach of the rejection rate that nothing more is done about it.

        The breach is over below 80 %; one that moved something has been told by that.
        """
        cause = next((each for each in judged if each.name == REJECT_RATE), None)
        if cause is None or cause.share < RECOVERY_SHARE:
            self._is_rejecting_told = False
        if cause is None or cause.share <= 1 or self._is_rejecting_told or self._may_yet_pause(now):
            return []
        self._is_rejecting_told = True
        return self._tell_measured(now, self._rung, cause, "nothing more is given up for it")

    def _may_yet_pause(self, now: float) -> bool:
        is_still = self._mode is Mode.MANUAL or self._rung is not Rung.NORMAL
        return not is_still and self._is_open(Rung.PAUSE_OFFLINE, now)

    def _enter(self, rung: Rung, now: float) -> None:
        if rung != self._rung:
            self._left_at |= {Rung(left): now for left in range(rung + 1, self._rung + 1)}
            self._rung, self._moved_at = rung, now

    def _tell_measured(self, now: float, before: Rung, cause: Judged | None, what: str) -> list[Move]:
        detail = f"{_told(cause)}: {what}."
        return self._tell(now, before, cause, detail, is_dry_run=self._mode is Mode.DRY_RUN)

    def _tell(
        self, now: float, before: Rung, cause: Judged | None, detail: str, *, is_dry_run: bool
    ) -> list[Move]:
        after = self._rung if is_dry_run else self.level
        self._num_moves += 1
        move = Move(
            number=self._num_moves,
            at=now,
            from_level=before,
            to_level=after,
            measure=cause.name if cause else "",
            value=cause.value if cause else None,
            target=cause.target if cause else None,
            detail=detail,
            is_dry_run=is_dry_run,
        )
        self.recent_moves.append(move)
        return [move]


def _highest(judged: Judged) -> Rung:
    return _HIGHEST.get(judged.name, Rung.NORMAL)


def _is_breach(judged: Judged) -> bool:
    """In breach, and still so: a hiccup stays in the window for ten seconds, long enough for four rungs."""
    return judged.share > 1 and (judged.latest is None or judged.latest > judged.target)


def _told(judged: Judged | None) -> str:
    if judged is None or judged.value is None or judged.share == 0:
        return "Too little was measured to miss a target"
    if judged.name.endswith("_ms"):
        return f"{judged.name} was {judged.value:,.0f} ms, its target is {judged.target:,.0f} ms"
    return f"{judged.name} was {judged.value:.1%}, its target is {judged.target:.1%}"
