"""The ladder by example, and in a closed loop with a small plant: a fair queue with a spike of load."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from engine.core.guardrails import NUM_RECENT_MOVES, Guardrails, Mode, Move, Rung
from engine.core.slo import Judged, SloMonitor, SloTargets

TARGETS = {
    "ttft_p95_ms": 1500.0,
    "itl_p95_ms": 120.0,
    "queue_wait_p95_ms": 500.0,
    "kv_cache_utilization_max": 0.88,
    "admission_reject_rate_max": 0.01,
}
WAITING = ("ttft_p95_ms", "queue_wait_p95_ms")


def judged(share: float = 0.1, *, num_samples: int = 100, **shares: float) -> tuple[Judged, ...]:
    """Every measure at `share` of its target, but for those named."""
    return tuple(
        Judged(name, target, shares.get(name, share) * target, num_samples)
        for name, target in TARGETS.items()
    )


def climbed(seconds: int = 60, *, guardrails: Guardrails | None = None, **shares: float) -> Guardrails:
    """After `seconds` of ticks with the same readings."""
    guardrails = guardrails or Guardrails()
    for second in range(seconds):
        guardrails.tick(judged(**shares), float(second), is_biting=True)
    return guardrails


@pytest.mark.parametrize(
    ("name", "rung"),
    [
        ("ttft_p95_ms", Rung.REFUSE_OVER_SHARE),
        ("queue_wait_p95_ms", Rung.REFUSE_OVER_SHARE),
        ("itl_p95_ms", Rung.SCALE_LIMITS),
        ("kv_cache_utilization_max", Rung.PREEMPT_OFFLINE),
        ("admission_reject_rate_max", Rung.PAUSE_OFFLINE),
    ],
)
def test_a_measure_climbs_as_far_as_that_helps_it(name: str, rung: Rung) -> None:
    assert climbed(**{name: 3.0}).level is rung


def test_rungs_are_climbed_three_seconds_apart() -> None:
    guardrails = climbed(ttft_p95_ms=2.0)
    assert [(move.at, move.to_level) for move in guardrails.recent_moves] == [
        (0, 1),
        (3, 2),
        (6, 3),
        (9, 4),
        (12, 5),
    ]


def test_after_a_pause_of_the_clock_one_rung_is_climbed_not_many() -> None:
    guardrails = Guardrails()
    guardrails.tick(judged(ttft_p95_ms=2.0), 0.0)
    assert len(guardrails.tick(judged(ttft_p95_ms=2.0), 5000.0)) == 1
    assert guardrails.tick(judged(ttft_p95_ms=2.0), 5000.1) == []


def test_nineteen_slow_answers_move_nothing() -> None:
    assert Guardrails().tick(judged(9.0, num_samples=19, kv_cache_utilization_max=0.1), 0.0) == []


def test_what_is_over_by_now_climbs_no_further() -> None:
    over = Judged("ttft_p95_ms", 1500.0, value=4000.0, num_samples=100, latest=90.0)
    assert Guardrails().tick([over], 0.0) == []


def test_a_move_tells_the_measure_furthest_over_its_target() -> None:
    [move] = Guardrails().tick(judged(ttft_p95_ms=1.4, queue_wait_p95_ms=1.6, itl_p95_ms=1.1), 7.0)
    assert move == Move(
        number=1,
        at=7.0,
        from_level=Rung.NORMAL,
        to_level=Rung.PAUSE_OFFLINE,
        measure="queue_wait_p95_ms",
        value=800.0,
        target=500.0,
        detail="queue_wait_p95_ms was 800 ms, its target is 500 ms: offline work is paused.",
        is_dry_run=False,
    )


def test_recovery_leaves_a_rung_each_three_seconds() -> None:
    guardrails = climbed(ttft_p95_ms=2.0)
    moves = [move for second in range(60, 80) for move in guardrails.tick(judged(), float(second))]
    assert [(move.at, move.to_level) for move in moves] == [(60, 4), (63, 3), (66, 2), (69, 1), (72, 0)]


def test_between_eighty_percent_and_its_target_a_measure_keeps_the_rung() -> None:
    guardrails = climbed(7, ttft_p95_ms=2.0)
    assert [guardrails.tick(judged(ttft_p95_ms=0.9), second) for second in (10.0, 100.0)] == [[], []]
    assert guardrails.level is Rung.REFUSE_LONG_CONTEXT


def test_a_rung_that_was_left_is_not_entered_again_within_thirty_seconds() -> None:
    guardrails = climbed(1, ttft_p95_ms=2.0)
    guardrails.tick(judged(), 10.0)
    moves = [move for at in range(11, 50) for move in guardrails.tick(judged(ttft_p95_ms=2.0), float(at))]
    assert moves[0].at == 40.0


@pytest.mark.parametrize("name", ["kv_cache_utilization_max", "admission_reject_rate_max"])
def test_a_measure_does_not_keep_up_rungs_it_may_not_climb(name: str) -> None:
    guardrails = climbed(60, ttft_p95_ms=2.0, **{name: 5.0})
    climbed_from = guardrails.level
    for second in range(60, 90):
        guardrails.tick(judged(**{name: 5.0}), float(second))
    assert (climbed_from, guardrails.level) == (Rung.REFUSE_OVER_SHARE, climbed(**{name: 5.0}).level)


def test_refusals_that_keep_waiting_short_are_kept_up() -> None:
    guardrails = climbed(ttft_p95_ms=2.0)
    assert climbed(250, guardrails=guardrails).level is Rung.REFUSE_OVER_SHARE


def test_refusals_are_tried_without_after_five_minutes() -> None:
    guardrails = climbed(ttft_p95_ms=2.0)
    assert climbed(320, guardrails=guardrails).level < Rung.REFUSE_OVER_SHARE


def test_scaled_limits_that_hold_itl_down_are_kept_up() -> None:
    guardrails = climbed(itl_p95_ms=1.2)
    for second in range(60, 200):
        guardrails.tick(judged(itl_p95_ms=0.7), float(second), is_biting=True)
    assert guardrails.level is Rung.SCALE_LIMITS


def test_waiting_that_scaled_limits_cause_does_not_keep_the_limits_scaled() -> None:
    guardrails = climbed(ttft_p95_ms=2.0)
    for at in (60.0, 63.0):
        guardrails.tick(judged(), at)
    assert guardrails.level is Rung.REFUSE_LONG_CONTEXT
    stuck = climbed(ttft_p95_ms=2.0)
    stuck.tick(judged(), 60.0)
    stuck.tick(judged(ttft_p95_ms=1.5), 63.0)
    assert stuck.level is Rung.REFUSE_LONG_CONTEXT


def test_refusing_nobody_for_thirty_seconds_is_given_up() -> None:
    guardrails = climbed(ttft_p95_ms=2.0)
    at_five = [guardrails.tick(judged(ttft_p95_ms=2.0), second) for second in (60.0, 88.0, 90.0)]
    assert [len(moves) for moves in at_five] == [0, 0, 1]


def test_rejections_in_breach_above_level_zero_alert_once_per_breach() -> None:
    guardrails = climbed(1, itl_p95_ms=2.0)
    alerts = guardrails.tick(judged(admission_reject_rate_max=4.0), 1.0)
    alerts += guardrails.tick(judged(admission_reject_rate_max=4.0), 2.0)
    assert [(each.from_level, each.to_level, each.measure) for each in alerts] == [
        (1, 1, "admission_reject_rate_max")
    ]


def test_rejections_that_pause_offline_are_told_by_that_move() -> None:
    assert len(climbed(admission_reject_rate_max=50.0).recent_moves) == 1


def test_an_operators_level_is_in_force_at_once_and_holds() -> None:
    guardrails = Guardrails()
    [move] = guardrails.order(Mode.MANUAL, 4, 10.0)
    assert (move.from_level, move.to_level, move.measure) == (0, 4, "")
    assert climbed(guardrails=guardrails).level is Rung.SCALE_LIMITS
    assert guardrails.restrictions.limit_scale == 0.7


def test_an_order_that_changes_nothing_is_no_move() -> None:
    guardrails = Guardrails()
    guardrails.order(Mode.MANUAL, 2, 0.0)
    assert guardrails.order(Mode.MANUAL, 2, 1.0) == []


def test_an_unknown_level_is_refused_and_changes_nothing() -> None:
    guardrails = Guardrails()
    with pytest.raises(ValueError, match="6"):
        guardrails.order(Mode.MANUAL, 6, 0.0)
    assert guardrails.mode is Mode.AUTOMATIC


def test_automatic_goes_on_from_the_operators_level() -> None:
    guardrails = Guardrails()
    guardrails.order(Mode.MANUAL, 3, 0.0)
    assert guardrails.order(Mode.AUTOMATIC, 0, 1.0) == []
    assert guardrails.level is Rung.REFUSE_LONG_CONTEXT
    assert [move.to_level for move in guardrails.tick(judged(), 4.0)] == [2]


def test_a_dry_run_tells_moves_and_restricts_nothing() -> None:
    guardrails = Guardrails()
    guardrails.order(Mode.DRY_RUN, 0, 0.0)
    climbed(guardrails=guardrails, ttft_p95_ms=2.0)
    assert [move.to_level for move in guardrails.recent_moves] == [1, 2, 3, 4, 5]
    assert all(move.is_dry_run for move in guardrails.recent_moves)
    assert (guardrails.level, guardrails.restrictions.forbids_rises) == (Rung.NORMAL, False)


def test_after_a_dry_run_moves_begin_at_normal_and_at_once() -> None:
    guardrails = Guardrails()
    guardrails.order(Mode.DRY_RUN, 0, 0.0)
    climbed(guardrails=guardrails, ttft_p95_ms=2.0)
    for second in range(60, 80):
        guardrails.tick(judged(), float(second))
    assert guardrails.order(Mode.AUTOMATIC, 0, 80.0) == []
    assert [move.to_level for move in guardrails.tick(judged(ttft_p95_ms=2.0), 81.0)] == [1]


def test_a_dry_run_ordered_on_a_rung_lifts_it() -> None:
    guardrails = climbed(ttft_p95_ms=2.0)
    [move] = guardrails.order(Mode.DRY_RUN, 0, 60.0)
    assert (move.from_level, move.to_level, move.is_dry_run) == (5, 0, False)


def test_moves_stay_readable_and_are_bounded() -> None:
    guardrails = Guardrails()
    for at in range(100):
        guardrails.order(Mode.MANUAL, at % 2 + 1, float(at))
    assert [move.number for move in guardrails.recent_moves] == list(range(101 - NUM_RECENT_MOVES, 101))


# --- closed loop -------------------------------------------------------------------------------------------

CAPACITY = 50.0  # requests per second of interactive work, when nothing else runs
MODEST, FLOODER = "modest", "flooder"
Load = Callable[[float], dict[str, float]]


@dataclass
class Plant:
    """Two tenants, served in fair turns; each waits in a line of at most 100. Offline work takes a fifth."""

    offered: Load
    guardrails: Guardrails = field(default_factory=Guardrails)
    scaled_capacity: float = 0.7  # of what the full limits reach
    seed: int = 1
    lines: dict[str, deque[float]] = field(default_factory=lambda: {MODEST: deque(), FLOODER: deque()})
    moves: list[Move] = field(default_factory=list)
    modest_waits: list[tuple[float, float]] = field(default_factory=list)

    def run(self, seconds: float) -> "Plant":
        random, self.monitor = Random(self.seed), SloMonitor(SloTargets(), now=0.0)
        self.credit, step = 0.0, 0.04
        self.offered_at: deque[float] = deque()
        for tick in range(int(seconds / step)):
            now = tick * step
            for tenant, rate in self.offered(now).items():
                for _ in range(int(rate * step + random.random())):
                    self._arrive(tenant, now)
            self._serve(now, step)
            if tick % 25 == 0:
                self._judge(now)
        return self

    def _arrive(self, tenant: str, now: float) -> None:
        self.offered_at.append(now)
        over_share = self.guardrails.restrictions.refuses_over_share and tenant == FLOODER
        if over_share or len(self.lines[tenant]) >= 100:
            self.monitor.window(now).num_refused += 1
        else:
            self.lines[tenant].append(now)

    def _serve(self, now: float, step: float) -> None:
        level = self.guardrails.level
        offline = 0.8 if level < Rung.PREEMPT_OFFLINE else 1.0
        scale = self.scaled_capacity if level >= Rung.SCALE_LIMITS else 1.0
        self.credit = min(self.credit + CAPACITY * offline * scale * step, 5.0)
        while self.credit >= 1 and any(self.lines.values()):
            self.credit -= 1
            tenant = MODEST if self.lines[MODEST] else FLOODER
            wait = (now - self.lines[tenant].popleft()) * 1000
            window = self.monitor.window(now)
            window.num_admitted += 1
            window.queue_wait.add(wait)
            window.ttft.add(wait + 50)
            window.itl.add(40.0, 20)
            if tenant == MODEST:
                self.modest_waits.append((now, wait))

    def _judge(self, now: float) -> None:
        ages = [now - at for line in self.lines.values() for at in line]
        self.monitor.note_waiting_age(now, max(ages, default=0.0), sum(age > 0.5 for age in ages))
        while self.offered_at and now - self.offered_at[0] > 3:
            self.offered_at.popleft()
        has_room = len(self.offered_at) < 3 * CAPACITY
        self.moves += self.guardrails.tick(self.monitor.judged(now), now, is_biting=not has_room)

    def level_at(self, now: float) -> int:
        return next((int(move.to_level) for move in reversed(self.moves) if move.at <= now), 0)


def spike(*, base: float = 0.5, begins: float = 60.0, ends: float = 150.0) -> Load:
    """Modest tenants at 40 %, and one that makes it `base`, and three times the capacity in the spike."""

    def offered(now: float) -> dict[str, float]:
        total = 3.0 if begins <= now < ends else base
        return {MODEST: 0.4 * CAPACITY, FLOODER: (total - 0.4) * CAPACITY}

    return offered


def quickest_return(moves: list[Move]) -> float:
    """The shortest time between leaving a rung and entering it again."""
    left: dict[int, float] = {}
    shortest = float("inf")
    for move in moves:
        if move.to_level < move.from_level:
            left[move.from_level] = move.at
        elif move.to_level > move.from_level:
            shortest = min(shortest, move.at - left.get(move.to_level, float("-inf")))
    return shortest


def test_a_spike_is_answered_within_twenty_seconds() -> None:
    plant = Plant(spike()).run(100.0)
    assert plant.level_at(59.0) == Rung.NORMAL
    assert plant.level_at(62.0) >= Rung.PAUSE_OFFLINE
    assert plant.level_at(80.0) == Rung.REFUSE_OVER_SHARE


@pytest.mark.parametrize(("length", "scaled_capacity"), [(10.0, 0.7), (10.0, 0.9), (33.0, 0.7), (120.0, 0.7)])
def test_thirty_seconds_after_a_spike_nothing_is_restricted(length: float, scaled_capacity: float) -> None:
    plant = Plant(spike(ends=60 + length), scaled_capacity=scaled_capacity).run(60 + length + 60)
    assert max(move.to_level for move in plant.moves) > Rung.PREEMPT_OFFLINE
    assert plant.guardrails.level is Rung.NORMAL
    assert plant.level_at(60 + length + 30) == Rung.NORMAL


def test_a_rung_is_not_entered_again_within_thirty_seconds_whatever_the_spikes() -> None:
    def spikes(now: float) -> dict[str, float]:
        return {MODEST: 20.0, FLOODER: 130.0 if now % 40 < 15 else 0.0}

    plant = Plant(spikes).run(300.0)
    assert len(plant.moves) > 10
    assert quickest_return(plant.moves) >= 30


def test_modest_tenants_keep_their_level_throughout_a_spike() -> None:
    plant = Plant(spike()).run(150.0)
    waits = sorted(wait for at, wait in plant.modest_waits if at >= 60)
    assert waits[int(0.95 * len(waits))] < 500


def test_under_a_lasting_overload_refusals_are_kept_up() -> None:
    plant = Plant(spike(ends=1e9)).run(300.0)
    assert [plant.level_at(float(at)) for at in range(100, 300, 20)] == [Rung.REFUSE_OVER_SHARE] * 10


def test_a_load_that_fits_full_limits_but_not_scaled_ones_is_let_go() -> None:
    def offered(now: float) -> dict[str, float]:
        return {MODEST: 0.75 * CAPACITY, FLOODER: 2.0 * CAPACITY if 60 <= now < 120 else 0.0}

    assert Plant(offered).run(300.0).guardrails.level is Rung.NORMAL


def test_readings_around_the_target_do_not_flap() -> None:
    random, guardrails = Random(3), Guardrails()
    for second in range(290):
        guardrails.tick(judged(queue_wait_p95_ms=random.uniform(0.85, 1.15)), float(second), is_biting=True)
    assert [move.to_level for move in guardrails.recent_moves] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(3))
def test_a_load_that_fits_only_without_offline_work_moves_no_rung_twice_in_thirty_seconds(seed: int) -> None:
    plant = Plant(lambda now: {MODEST: 0.4 * CAPACITY, FLOODER: 0.4 * CAPACITY}, seed=seed).run(200.0)
    assert plant.moves
    assert quickest_return(plant.moves) >= 30


def test_in_a_dry_run_a_spike_is_served_as_without_guardrails() -> None:
    class Absent(Guardrails):
        def tick(self, *_args: object, **_kwargs: object) -> list[Move]:
            return []

    dry = Guardrails()
    dry.order(Mode.DRY_RUN, 0, 0.0)
    with_dry_run, without = Plant(spike(), guardrails=dry), Plant(spike(), guardrails=Absent())
    assert with_dry_run.run(120.0).modest_waits == without.run(120.0).modest_waits
    assert max(move.to_level for move in with_dry_run.moves) == Rung.REFUSE_OVER_SHARE


def test_moves_are_numbered_without_gaps() -> None:
    numbers = [move.number for move in Plant(spike()).run(200.0).moves]
    assert all(later - earlier == 1 for earlier, later in pairwise(numbers))
