"""The live picture: states of engines, sums over them, and followers of the newest snapshot."""

import asyncio
from dataclasses import dataclass

import pytest

from admin_ui.figures import EngineState, Progress, SloState, slo_lines
from admin_ui.live import HISTORY_SECONDS, Broadcaster, LiveBoard
from engine.protocol import ClassCounts, EngineDescription, EngineStatus, SloRow
from gateway.engines.client import EngineAddress
from tests.builders.engine_messages import engine_status

HERE = EngineAddress(url="ws://a:1")
BUSY = ClassCounts(running=2, waiting=1)


@dataclass
class Engine:
    """What the board sees of a connection, set by hand."""

    status: EngineStatus | None = None
    connected: bool = True
    description: EngineDescription | None = None
    address: EngineAddress = HERE


class Watched:
    """A board over engines at a turned clock."""

    def __init__(self, *engines: Engine) -> None:
        self.now = 1000.0
        self.board = LiveBoard(lambda: engines, lambda: self.now)

    def after(self, seconds: float) -> "Watched":
        self.now += seconds
        return self


def row(now: float | None, five_minutes: float | None, *, minutes: int = 0) -> SloRow:
    return SloRow("ttft_p95_ms", 1500.0, now, five_minutes, minutes)


@pytest.mark.parametrize(
    ("engine", "state"),
    [
        (Engine(engine_status()), EngineState.HEALTHY),
        (Engine(engine_status(draining=True)), EngineState.DRAINING),
        (Engine(engine_status(healthy=False)), EngineState.UNHEALTHY),
        (Engine(None), EngineState.UNREACHABLE),
        (Engine(engine_status(), connected=False), EngineState.UNREACHABLE),
    ],
)
def test_an_engine_s_state_follows_from_what_it_says(engine: Engine, state: EngineState) -> None:
    assert Watched(engine).board.observe().engines[0].state is state


def test_an_engine_that_falls_silent_is_unreachable() -> None:
    watched = Watched(Engine(engine_status()))
    watched.board.observe()
    view = watched.after(6).board.observe().engines[0]
    assert (view.state, view.silent_seconds) == (EngineState.UNREACHABLE, 6.0)


def test_a_changing_step_counter_moves() -> None:
    engine = Engine(engine_status(step=1))
    watched = Watched(engine)
    watched.board.observe()
    engine.status = engine_status(step=2)
    assert watched.after(1).board.observe().engines[0].progress is Progress.MOVING


@pytest.mark.parametrize(
    ("interactive", "progress"),
    [(ClassCounts(running=0, waiting=0), Progress.IDLE), (BUSY, Progress.STANDING)],
)
def test_a_resting_step_counter_is_trouble_only_with_work(
    interactive: ClassCounts, progress: Progress
) -> None:
    engine = Engine(engine_status(interactive=interactive))
    assert Watched(engine).board.observe().engines[0].progress is progress


def test_sums_leave_out_engines_that_are_away() -> None:
    here = Engine(engine_status(interactive=BUSY))
    away = Engine(engine_status(interactive=BUSY), connected=False, address=EngineAddress(url="ws://b:1"))
    assert Watched(here, away).board.observe().history[-1].totals.running == 2


def test_no_engines_make_an_empty_picture() -> None:
    assert Watched().board.observe().engines == ()


def test_history_keeps_five_minutes() -> None:
    watched = Watched(Engine(engine_status()))
    for _ in range(int(HISTORY_SECONDS) + 50):
        snapshot = watched.after(1).board.observe()
    assert snapshot.history[0].at == watched.now - HISTORY_SECONDS


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([row(1000.0, 900.0)], SloState.OK),
        ([row(1600.0, 900.0)], SloState.BREACH),
        ([row(None, 1600.0)], SloState.BREACH),
        ([row(None, None, minutes=3)], SloState.NO_DATA),
        ([row(1000.0, 900.0), row(1600.0, 900.0)], SloState.BREACH),
    ],
)
def test_the_worst_engine_decides_a_service_level(rows: list[SloRow], state: SloState) -> None:
    lines = slo_lines(engine_status(slo=(one,)) for one in rows)
    assert [line.state for line in lines] == [state]


async def test_a_follower_gets_the_newest_snapshot_at_once() -> None:
    watched = Watched()
    newest = watched.board.observe()
    assert await anext(Broadcaster(newest).follow()) is newest


async def test_a_slow_follower_skips_what_it_missed() -> None:
    watched = Watched()
    broadcaster = Broadcaster(watched.board.observe())
    follower = broadcaster.follow()
    await anext(follower)
    for _ in range(3):
        broadcaster.publish(newest := watched.board.observe())
    assert await anext(follower) is newest


async def test_closing_ends_followers_that_wait() -> None:
    broadcaster = Broadcaster(Watched().board.observe())
    follower = broadcaster.follow()
    await anext(follower)
    waiting = asyncio.create_task(anext(follower, None))
    broadcaster.close()
    assert await asyncio.wait_for(waiting, 5) is None
