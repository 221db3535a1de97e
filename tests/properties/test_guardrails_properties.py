"""Whatever is judged, and whenever: a rung in three seconds, none again within thirty, down in the end."""

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.core.guardrails import Guardrails, Mode, Move, Rung
from engine.core.slo import Judged

NAMES = (
    "ttft_p95_ms",
    "itl_p95_ms",
    "queue_wait_p95_ms",
    "kv_cache_utilization_max",
    "admission_reject_rate_max",
)
# Half of them are missing. One draw each, put together below: hypothesis takes most of the time here.
SHARES = st.sampled_from([None] * 7 + [0.0, 0.55, 0.79, 0.8, 1.0, 1.01, 3.0])
READINGS = st.tuples(*[SHARES for _ in NAMES], SHARES, st.sampled_from([0, 19, 20, 500]))
SPACINGS = st.sampled_from([0.01, 0.5, 1.0, 1.3, 2.9, 3.0, 7.0, 29.0, 31.0, 4000.0])


def measures(reading: tuple) -> tuple[Judged, ...]:
    *shares, latest, num_samples = reading
    return tuple(
        Judged(name, 1.0, share, num_samples, latest) for name, share in zip(NAMES, shares, strict=True)
    )


def ticks_of(drawn: list[tuple]) -> "Ticks":
    return [(spacing, measures(reading), is_biting) for spacing, reading, is_biting in drawn]


TICKS = st.lists(st.tuples(SPACINGS, READINGS, st.booleans()), max_size=80).map(ticks_of)
BREACH = tuple(Judged(name, 1.0, 3.0, 100) for name in NAMES)
CLEAN = tuple(Judged(name, 1.0, 0.1, 100) for name in NAMES)

Ticks = list[tuple[float, tuple[Judged, ...], bool]]


def run(guardrails: Guardrails, ticks: Ticks) -> Iterator[tuple[float, list[Move]]]:
    now = 1000.0
    for spacing, measures, is_biting in ticks:
        now += spacing
        yield now, guardrails.tick(measures, now, is_biting=is_biting)


def steps(guardrails: Guardrails, ticks: Ticks) -> list[Move]:
    moves = [move for _, told in run(guardrails, ticks) for move in told]
    return [move for move in moves if move.from_level != move.to_level]


@given(TICKS)
def test_one_rung_at_a_time_and_at_most_one_in_three_seconds(ticks: Ticks) -> None:
    moves = steps(Guardrails(), ticks)
    assert all(abs(move.to_level - move.from_level) == 1 for move in moves)
    assert all(later.at - earlier.at >= 3 for earlier, later in pairwise(moves))


@given(TICKS)
def test_no_rung_is_entered_again_within_thirty_seconds_of_leaving_it(ticks: Ticks) -> None:
    left: dict[Rung, float] = {}
    for move in steps(Guardrails(), ticks):
        if move.to_level < move.from_level:
            left[move.from_level] = move.at
        else:
            assert move.at - left.get(move.to_level, float("-inf")) >= 30


@given(TICKS)
def test_the_level_is_where_the_moves_led(ticks: Ticks) -> None:
    guardrails, level = Guardrails(), Rung.NORMAL
    for _, moves in run(guardrails, ticks):
        for move in moves:
            assert move.from_level == level
            level = move.to_level
        assert guardrails.level == level
        assert guardrails.restrictions.level == level


@given(TICKS)
def test_rejections_alone_never_cause_rejections(ticks: Ticks) -> None:
    guardrails = Guardrails()
    for _, _ in run(guardrails, [(spacing, measures[4:], biting) for spacing, measures, biting in ticks]):
        assert guardrails.level <= Rung.PAUSE_OFFLINE


@given(TICKS)
def test_a_full_cache_and_rejections_together_refuse_nobody(ticks: Ticks) -> None:
    guardrails = Guardrails()
    for _, _ in run(guardrails, [(spacing, measures[3:], biting) for spacing, measures, biting in ticks]):
        assert not guardrails.restrictions.refuses_long_context


@given(TICKS)
def test_with_clean_readings_all_is_normal_in_fifteen_seconds(ticks: Ticks) -> None:
    guardrails = Guardrails()
    steps(guardrails, [*ticks, *[(1.0, CLEAN, False)] * 15])
    assert guardrails.level is Rung.NORMAL


@given(TICKS)
def test_with_clean_readings_all_is_normal_in_the_end_although_a_rung_bites(ticks: Ticks) -> None:
    guardrails = Guardrails()
    steps(guardrails, [*ticks, *[(1.0, CLEAN, True)] * 330])
    assert guardrails.level is Rung.NORMAL


@given(TICKS)
def test_a_lasting_breach_leads_to_the_last_rung(ticks: Ticks) -> None:
    guardrails = Guardrails()
    steps(guardrails, [*ticks, *[(1.0, BREACH, True)] * 120])
    assert guardrails.level is Rung.REFUSE_OVER_SHARE


@given(TICKS)
def test_a_dry_run_restricts_nothing_and_tells_only_dry_moves(ticks: Ticks) -> None:
    guardrails = Guardrails()
    guardrails.order(Mode.DRY_RUN, 0, 0.0)
    for _, moves in run(guardrails, ticks):
        assert guardrails.level is Rung.NORMAL
        assert all(move.is_dry_run for move in moves)


@given(TICKS, st.integers(0, 5))
def test_what_an_operator_set_holds(ticks: Ticks, level: int) -> None:
    guardrails = Guardrails()
    guardrails.order(Mode.MANUAL, level, 0.0)
    assert steps(guardrails, ticks) == []
    assert guardrails.level == level
