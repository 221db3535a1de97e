"""Orders to a running engine over its WebSocket: in force within a step and told, or told why not."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from engine.core.slo import SloTargets
from engine.protocol import (
    Configure,
    EngineStatus,
    Finished,
    FinishReason,
    GuardrailMode,
    GuardrailOrders,
    LimitChanges,
    Refused,
    RequestClass,
    Sampling,
    TokenDelta,
    WaitReason,
)
from engine.runner.scripted_runner import ScriptedRunner, letters
from tests.builders.engine_peer import Peer, dial, request
from tests.builders.scripted_engine import LIMITS, ScriptedEngine, scripted_engine

SLOW = ScriptedRunner(letters(ord("a"), 26), seconds_per_step=0.01)
LONG, SHORT = Sampling(max_tokens=200), Sampling(max_tokens=4)


@pytest.fixture(autouse=True)
def frequent_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.server.STATUS_SECONDS", 0.05)
    monkeypatch.setattr("engine.loop.SNAPSHOT_SECONDS", 0.02)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with scripted_engine("{}", runner=SLOW) as running:
        yield running


async def order(peer: Peer, revision: int = 1, **changes: object) -> None:
    """Sends a configuration, whose limits are given one by one."""
    guardrails = changes.pop("guardrails", GuardrailOrders())
    weights = changes.pop("weights", {})
    await peer.send(
        Configure(
            revision=revision,
            limits=LimitChanges(**changes),  # type: ignore[arg-type]
            guardrails=guardrails,  # type: ignore[arg-type]
            weights=weights,  # type: ignore[arg-type]
        )
    )


def manual(level: int) -> GuardrailOrders:
    return GuardrailOrders(mode=GuardrailMode.MANUAL, level=level)


async def in_force(peer: Peer, revision: int) -> EngineStatus:
    return await peer.status_where(lambda status: status.config_revision == revision)


async def refusal_of(peer: Peer, id: str) -> Refused:
    end = (await peer.end_of(id))[id]
    assert isinstance(end, Refused), end
    return end


def running(status: EngineStatus) -> int:
    return status.interactive.running


# --- limits ----------------------------------------------------------------------------------------------


async def test_fewer_seats_let_nobody_new_in_and_more_seats_let_all_in(engine: ScriptedEngine) -> None:
    peer = await dial(engine)
    for index in range(3):
        await peer.send(request(f"first{index}", sampling=LONG))
    await peer.status_where(lambda status: running(status) == 3)
    await order(peer, 1, max_num_seqs=2)
    assert (await in_force(peer, 1)).limits.max_num_seqs == 2
    await peer.send(request("waits", sampling=LONG))
    status = await peer.status_where(lambda status: status.interactive.waiting == 1)
    assert running(status) == 3  # nobody who runs is thrown out
    assert [row.reason for row in status.waiting] == [WaitReason.MAX_NUM_SEQS]
    await order(peer, 2, max_num_seqs=8)
    await peer.status_where(lambda status: running(status) == 4)


async def test_an_order_is_in_force_for_the_request_that_follows_it(engine: ScriptedEngine) -> None:
    peer = await dial(engine)
    await order(peer, 1, max_output_len=10)
    await peer.send(request("long", sampling=Sampling(max_tokens=11)))
    await peer.send(request("just right", sampling=Sampling(max_tokens=10)))
    ends = await peer.end_of("long", "just right")
    assert isinstance(ends["long"], Refused)
    assert ends["long"].reason == "output_too_long"
    assert isinstance(ends["just right"], Finished)
    await order(peer, 2)  # an absent limit is that of the start again
    await peer.send(request("again", sampling=Sampling(max_tokens=11)))
    assert isinstance((await peer.end_of("again"))["again"], Finished)


async def test_what_waits_is_refused_when_the_order_leaves_no_room_for_its_output(
    engine: ScriptedEngine,
) -> None:
    peer = await dial(engine)
    await order(peer, 1, max_num_seqs=1)
    await peer.send(request("runs", sampling=LONG))
    await peer.send(request("waits", sampling=LONG))
    await peer.status_where(lambda status: status.interactive.waiting == 1)
    await order(peer, 2, max_num_seqs=1, max_output_len=50)
    assert (await refusal_of(peer, "waits")).reason == "output_too_long"
    end = (await peer.end_of("runs"))["runs"]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.LENGTH  # what runs was promised its answer
    assert end.usage.completion_tokens == 200


async def test_a_shorter_patience_binds_those_who_wait_already(engine: ScriptedEngine) -> None:
    peer = await dial(engine)
    await order(peer, 1, max_num_seqs=1)
    await peer.send(request("runs", sampling=LONG))
    await peer.send(request("waits", sampling=LONG))
    await peer.status_where(lambda status: status.interactive.waiting == 1)
    await order(peer, 2, max_num_seqs=1, waiting_timeout_ms=1)
    refused = await refusal_of(peer, "waits")
    assert refused.reason == "waiting_timeout"
    assert refused.wait_reason is WaitReason.MAX_NUM_SEQS


@pytest.mark.parametrize("request_class", list(RequestClass))
async def test_a_waiting_request_that_the_cache_may_no_longer_hold_is_refused(
    engine: ScriptedEngine, request_class: RequestClass
) -> None:
    peer = await dial(engine)
    await order(peer, 1, max_num_seqs=1)
    await peer.send(request("runs", sampling=LONG))
    large = request("large", prompt_ids=(1,) * 200, sampling=LONG, request_class=request_class)
    await peer.send(large)
    await peer.send(request("small", sampling=SHORT, request_class=request_class))
    await peer.status_where(lambda status: status.interactive.waiting + status.offline.waiting == 2)
    await order(peer, 2, max_num_seqs=1, kv_cache_utilization_limit=0.05)  # 12 blocks of 16 tokens
    refused = await refusal_of(peer, "large")
    assert refused.reason in ("kv_never_fits", "context_too_long")
    assert "small" in await peer.end_of("small")
    status = await in_force(peer, 2)
    assert status.limits.max_model_len == 12 * 16  # what is published is what can be had


async def test_weights_bind_requests_that_wait_already(engine: ScriptedEngine) -> None:
    peer = await dial(engine)
    await order(peer, 1, max_num_seqs=1)
    await peer.send(request("runs", tenant="other", sampling=LONG))
    for tenant in ("heavy", "light"):
        for index in range(20):
            await peer.send(request(f"{tenant}{index}", tenant=tenant, sampling=SHORT))
    await peer.status_where(lambda status: status.interactive.waiting == 40)
    await order(peer, 2, max_num_seqs=1, weights={"heavy": 9.0})
    status = await in_force(peer, 2)
    assert {row.tenant: row.weight for row in status.tenants} == {"other": 1.0, "heavy": 9.0, "light": 1.0}
    ended: list[str] = []
    while len(ended) < 11:
        ended += [each.id for each in await peer.events_until(Finished) if isinstance(each, Finished)]
    first_ten = [id for id in ended if id != "runs"][:10]
    assert sum(id.startswith("heavy") for id in first_ten) >= 8


# --- what is not obeyed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens (8) must be at least max_num_seqs"),
        ({"max_model_len": 100_000}, "max_model_len is 100000"),
        ({"kv_cache_utilization_limit": 0.001}, "kv_cache_utilization_limit"),
    ],
)
async def test_limits_that_contradict_each_other_are_told_and_the_old_ones_stay(
    engine: ScriptedEngine, changes: dict[str, float], key: str
) -> None:
    peer = await dial(engine)
    await order(peer, 1, max_output_len=99)
    await in_force(peer, 1)
    await order(peer, 2, **changes)
    status = await in_force(peer, 2)
    assert status.config_error is not None
    assert key in status.config_error
    assert status.limits.max_output_len == 99
    assert status.limits.max_num_seqs == LIMITS.max_num_seqs
    await order(peer, 3, max_output_len=98)
    status = await in_force(peer, 3)
    assert (status.config_error, status.limits.max_output_len) == (None, 98)


async def test_an_older_revision_changes_nothing(engine: ScriptedEngine) -> None:
    peer, late = await dial(engine, epoch=1), await dial(engine, epoch=2)
    await order(peer, 5, max_output_len=50)
    await in_force(peer, 5)
    await order(late, 4, max_output_len=40)
    await order(late, 5, max_output_len=60)
    await late.send(request("r", epoch=2, sampling=SHORT))
    await late.end_of("r")  # so both were read
    status = await in_force(late, 5)
    assert status.limits.max_output_len == 50


async def test_an_observer_orders_nothing(engine: ScriptedEngine) -> None:
    peer, observer = await dial(engine, epoch=1), await dial(engine, epoch=2, observer=True)
    await order(observer, 7, max_output_len=1)
    await observer.send(request("refused"))
    await observer.end_of("refused")  # so the order was read
    await order(peer, 1, max_output_len=50)
    assert (await in_force(observer, 1)).limits.max_output_len == 50


# --- guardrails --------------------------------------------------------------------------------------------


async def test_at_level_3_long_prompts_are_refused_and_the_move_is_told(engine: ScriptedEngine) -> None:
    peer = await dial(engine)
    await order(peer, 1, long_context_threshold=50, guardrails=manual(3))
    await peer.send(request("long", prompt_ids=(1,) * 51, sampling=SHORT))
    await peer.send(request("short", prompt_ids=(1,) * 50, sampling=SHORT))
    ends = await peer.end_of("long", "short")
    assert isinstance(ends["long"], Refused)
    assert ends["long"].reason == "long_context_degraded"
    assert isinstance(ends["short"], Finished)
    guardrails = (await in_force(peer, 1)).guardrails
    assert (guardrails.mode, guardrails.level) == (GuardrailMode.MANUAL, 3)
    (event,) = guardrails.events
    assert (event.from_level, event.to_level, event.detail) == (0, 3, "An operator set level 3.")


async def test_at_level_5_a_tenant_over_its_share_is_refused_and_a_modest_one_is_not() -> None:
    limits = replace(LIMITS, max_num_seqs=2)
    async with scripted_engine("{}", runner=SLOW, limits=limits) as engine:
        peer = await dial(engine)
        await peer.send(request("modest", tenant="modest", sampling=SHORT))
        await peer.end_of("modest")
        for index in range(6):
            await peer.send(request(f"greedy{index}", tenant="greedy", sampling=LONG))
        await peer.status_where(lambda status: status.interactive.waiting >= 4)
        await order(peer, 1, guardrails=manual(5))
        await in_force(peer, 1)
        await peer.send(request("more", tenant="greedy", sampling=SHORT))
        await peer.send(request("modest again", tenant="modest", sampling=SHORT))
        refused = await refusal_of(peer, "more")
        assert refused.reason == "rate_share"
        assert refused.retry_after_ms is not None
        assert refused.retry_after_ms >= 1000
        await order(peer, 2, guardrails=manual(0))  # its seat comes sooner without the scaled limits
        end = (await peer.end_of("modest again"))["modest again"]
        assert isinstance(end, Finished)


async def test_offline_work_stands_still_at_level_1_and_goes_on_afterwards(engine: ScriptedEngine) -> None:
    peer = await dial(engine)
    await peer.send(request("offline", request_class=RequestClass.OFFLINE, sampling=LONG))
    await peer.events_until(TokenDelta)
    await order(peer, 1, guardrails=manual(1))
    await in_force(peer, 1)
    status = await peer.status_where(lambda status: status.step == engine.loop.progress.step)
    for _ in range(3):
        later = await peer.status_where(lambda status: True)
        assert (later.step, later.healthy) == (status.step, True)
    await order(peer, 2, guardrails=manual(0))
    assert isinstance((await peer.end_of("offline"))["offline"], Finished)


MISSED = SloTargets(ttft_p95_ms=0.001)  # by every request


async def until_moved(peer: Peer, *, num_requests: int = 25) -> EngineStatus:
    """Sends enough requests to be judged and waits for what the guardrails make of it."""
    for index in range(num_requests):
        await peer.send(request(f"judged{index}", sampling=Sampling(max_tokens=1)))
    return await peer.status_where(lambda status: len(status.guardrails.events) > 0)


async def test_a_move_of_the_guardrails_is_told_with_the_figure_that_caused_it() -> None:
    async with scripted_engine("{}", targets=MISSED) as engine:
        status = await until_moved(await dial(engine))
        event = status.guardrails.events[0]
        assert (event.from_level, event.to_level, event.measure) == (0, 1, "ttft_p95_ms")
        assert event.value is not None
        assert event.value > 0.001
        assert event.target == 0.001
        assert status.guardrails.level == 1


async def test_a_dry_run_tells_its_moves_and_restricts_nothing() -> None:
    async with scripted_engine("{}", targets=MISSED) as engine:
        peer = await dial(engine)
        await order(peer, 1, guardrails=GuardrailOrders(mode=GuardrailMode.DRY_RUN))
        status = await until_moved(peer)
        assert status.guardrails.events[0].is_dry_run
        assert (status.guardrails.mode, status.guardrails.level) == (GuardrailMode.DRY_RUN, 0)
        await peer.send(request("offline", request_class=RequestClass.OFFLINE))
        assert isinstance((await peer.end_of("offline"))["offline"], Finished)
