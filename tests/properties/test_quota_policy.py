"""Whatever is asked, granted, used and given back: a tenant never gets more than its limits."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.limits import TenantLimits
from gateway.quotas.policy import (
    Ask,
    Granted,
    NoSlot,
    NoTokens,
    Standing,
    change_limit,
    decide,
    refill,
    release,
)

limits = st.builds(
    TenantLimits,
    concurrent_requests=st.none() | st.integers(0, 8),
    tokens_per_minute=st.none() | st.integers(0, 5_000),
)


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    cap = draw(st.integers(1, 2_000))
    return Ask(
        prompt_tokens=draw(st.integers(1, 2_000)), output_cap=cap, output_floor=draw(st.integers(1, cap))
    )


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class End:
    """One live request ends, having used this share of what it held."""

    share: float


events = st.lists(
    asks() | st.builds(Wait, st.floats(0, 90)) | st.builds(End, st.floats(0, 1)), min_size=1, max_size=60
)


def full(limits: TenantLimits) -> Standing:
    return Standing(limits=limits, available=float(limits.tokens_per_minute or 0), held_tokens=0, num_live=0)


@given(limits, events)
def test_use_stays_under_limit_plus_refill_over_every_span(
    limits: TenantLimits, events: list[object]
) -> None:
    standing, now = full(limits), 0.0
    live: list[int] = []
    settled: list[tuple[float, int]] = []
    for event in events:
        match event:
            case Wait(seconds):
                standing, now = refill(standing, elapsed_seconds=seconds), now + seconds
            case End(share) if live:
                held = live.pop(0)
                used = int(held * share)
                standing = release(standing, held_tokens=held, used_tokens=used)
                settled.append((now, used))
            case Ask():
                standing, decision = decide(standing, event)
                if isinstance(decision, Granted):
                    live.append(decision.held_tokens or 0)
        assert_within(limits, standing, live)
    assert_spans(limits, settled)


def assert_within(limits: TenantLimits, standing: Standing, live: list[int]) -> None:
    assert standing.num_live == len(live)
    assert standing.held_tokens == sum(live)
    if limits.concurrent_requests is not None:
        assert standing.num_live <= limits.concurrent_requests
    if limits.tokens_per_minute is not None:
        assert standing.available >= 0
        assert standing.available + standing.held_tokens <= limits.tokens_per_minute + 1e-6


def assert_spans(limits: TenantLimits, settled: list[tuple[float, int]]) -> None:
    limit = limits.tokens_per_minute
    if limit is None:
        return
    for index, (start, _) in enumerate(settled):
        for end, _ in settled[index:]:
            used = sum(tokens for at, tokens in settled if start <= at <= end)
            assert used <= limit + limit / 60 * (end - start) + 1e-6


@given(limits, asks())
def test_a_refusal_takes_nothing(limits: TenantLimits, ask: Ask) -> None:
    before = full(limits)
    after, decision = decide(before, ask)
    if not isinstance(decision, Granted):
        assert after == before


@given(limits, asks())
def test_a_grant_gives_an_output_between_floor_and_cap(limits: TenantLimits, ask: Ask) -> None:
    _, decision = decide(full(limits), ask)
    if isinstance(decision, Granted):
        assert 1 <= decision.max_output_tokens <= ask.output_cap
        assert decision.reserved_tokens == ask.prompt_tokens + decision.max_output_tokens


@given(st.integers(1, 5_000), asks(), st.floats(0, 5_000))
def test_waiting_as_long_as_told_is_enough(limit: int, ask: Ask, available: float) -> None:
    standing = Standing(
        limits=TenantLimits(tokens_per_minute=limit),
        available=min(available, limit),
        held_tokens=0,
        num_live=0,
    )
    _, decision = decide(standing, ask)
    if isinstance(decision, NoTokens) and decision.retry_after_seconds is not None:
        rested = refill(standing, elapsed_seconds=decision.retry_after_seconds + 0.001)
        _, again = decide(rested, ask)
        assert isinstance(again, Granted)


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.floats(0, 1), st.floats(0, 1))
def test_a_changed_limit_forgets_nothing_and_overfills_nothing(
    old: int, new: int, held_share: float, left_share: float
) -> None:
    held = int(old * held_share)
    available = (old - held) * left_share
    changed = change_limit(available=available, old=old, new=new, held_tokens=held)
    assert changed + held <= new + 1e-6
    assert new - changed >= old - available - 1e-6


def test_a_limit_of_no_slots_is_never_worth_a_retry() -> None:
    _, decision = decide(
        full(TenantLimits(concurrent_requests=0)), Ask(prompt_tokens=1, output_cap=1, output_floor=1)
    )
    assert decision == NoSlot(limit=0, in_use=0, retry_after_seconds=None)


def test_a_request_that_can_do_with_less_is_clamped_to_a_small_limit() -> None:
    ask = Ask(prompt_tokens=60, output_cap=4_096, output_floor=256)
    _, decision = decide(full(TenantLimits(tokens_per_minute=100)), ask)
    assert isinstance(decision, Granted)
    assert decision.max_output_tokens == 40


def test_a_request_over_the_whole_limit_is_never_worth_a_retry() -> None:
    ask = Ask(prompt_tokens=60, output_cap=50, output_floor=50)
    _, decision = decide(full(TenantLimits(tokens_per_minute=100)), ask)
    assert decision == NoTokens(limit=100, used=0, requested=110, retry_after_seconds=None)
