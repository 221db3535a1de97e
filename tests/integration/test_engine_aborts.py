"""Clients that leave, over the engine's WebSocket: whatever they left, the next request finds it free."""

import asyncio
from dataclasses import replace

import pytest

from engine.core.step import StepPlan, StepResult
from engine.protocol import Cancel, EngineStatus, Finished, FinishReason, Sampling
from engine.runner.scripted_runner import ScriptedRunner, letters
from tests.builders.engine_peer import dial, request
from tests.builders.scripted_engine import LIMITS, ScriptedEngine, scripted_engine

LONG = {"prompt_ids": tuple(range(1, 251)), "sampling": Sampling(max_tokens=200)}


class Watched(ScriptedRunner):
    """A slow model that remembers its plans."""

    def __init__(self) -> None:
        super().__init__(letters(ord("a"), 26), seconds_per_step=0.02)
        self.plans: list[StepPlan] = []

    def collect(self, in_flight: StepPlan) -> StepResult:
        self.plans.append(in_flight)
        return super().collect(in_flight)

    def num_steps_of(self, id: str) -> int:
        """Steps with a row of this request."""
        return sum(id in [row.sequence_id for row in plan.rows] for plan in self.plans)


@pytest.fixture(autouse=True)
def frequent_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.server.STATUS_SECONDS", 0.05)
    monkeypatch.setattr("engine.loop.SNAPSHOT_SECONDS", 0.02)


def is_empty(status: EngineStatus) -> bool:
    num_live = status.interactive.running + status.interactive.waiting
    return num_live == 0 and status.kv_blocks_used == 0


async def until(runner: Watched, engine: ScriptedEngine, num_plans: int) -> None:
    async with asyncio.timeout(5):
        while len(runner.plans) < num_plans:  # noqa: ASYNC110 - the loop's thread has no event for it
            await asyncio.sleep(0.005)
    assert not engine.crash.done()


async def test_a_client_that_leaves_during_a_long_prefill_is_noticed_before_any_token() -> None:
    """lemonade#3133: a disconnect was noticed when the next piece was written, so never in a long prefill."""
    runner, limits = Watched(), replace(LIMITS, prefill_chunk_size=4)
    async with scripted_engine("{}", runner=runner, limits=limits) as engine:
        leaving, witness = await dial(engine, epoch=1), await dial(engine, epoch=2)
        await leaving.send(request("leaving", **LONG))
        await until(runner, engine, 3)
        leaving.websocket.transport.abort()
        await witness.status_where(is_empty)
        num_steps = runner.num_steps_of("leaving")
        assert num_steps < 250 / 4  # in the middle of its prompt
        await witness.send(request("next", epoch=2))
        assert isinstance((await witness.end_of("next"))["next"], Finished)
        assert runner.num_steps_of("leaving") == num_steps


async def test_a_cancel_that_comes_with_its_request_is_answered_and_leaves_nothing() -> None:
    """vllm#57061: a client cancelled during submission; the state was registered and never removed."""
    runner = Watched()
    async with scripted_engine("{}", runner=runner) as engine:
        peer = await dial(engine)
        for index in range(20):
            await peer.send(request(f"r{index}", **LONG))
            await peer.send(Cancel(f"r{index}"))
        ends = await peer.end_of(*(f"r{index}" for index in range(20)))
        assert all(
            isinstance(end, Finished) and end.reason is FinishReason.CANCELLED for end in ends.values()
        )
        await peer.status_where(is_empty)
        assert engine.loop._live == {}


async def test_a_connection_lost_right_after_its_requests_leaves_nothing() -> None:
    """vllm#57061, with the whole gateway gone."""
    runner = Watched()
    async with scripted_engine("{}", runner=runner) as engine:
        lost, witness = await dial(engine, epoch=1), await dial(engine, epoch=2)
        for index in range(20):
            await lost.send(request(f"r{index}", **LONG))
        lost.websocket.transport.abort()
        await witness.send(request("next", epoch=2))
        await witness.end_of("next")
        await witness.status_where(is_empty)
        assert max(runner.num_steps_of(f"r{index}") for index in range(20)) < 200
        assert engine.loop._live == {}


async def test_after_a_crowd_has_left_the_next_request_shares_its_steps_with_nobody() -> None:
    """mini-sglang#15: zombie decodes took a third of the next request's steps."""
    runner = Watched()
    async with scripted_engine("{}", runner=runner) as engine:
        crowd, witness = await dial(engine, epoch=1), await dial(engine, epoch=2)
        for index in range(10):
            await crowd.send(request(f"zombie{index}", sampling=Sampling(max_tokens=200)))
        await crowd.status_where(lambda status: status.interactive.running == 10)
        await crowd.websocket.close()
        await witness.status_where(is_empty)
        assert runner.num_steps_of("zombie0") < 200  # it did not come to its own end
        await witness.send(request("next", epoch=2))
        await witness.end_of("next")
        company = [plan.rows for plan in runner.plans if "next" in [row.sequence_id for row in plan.rows]]
        assert [len(rows) for rows in company] == [1] * 4
