"""Decides who gets a slot and how many tokens. Pure arithmetic: it knows no clock, no row and no error code.

A bucket holds `available` tokens, live requests hold `held` more, and at all times

    available + held <= limit

so over any span of T seconds a tenant uses at most  limit + limit / 60 * T,  however many replicas admit and
however long requests run. The price: what a long request holds does not refill until it has ended.
"""

from dataclasses import dataclass, replace
from typing import Final

from gateway.quotas.limits import TenantLimits
from gateway.quotas.reservation import RateState

SECONDS_PER_REFILL: Final = 60.0
MAX_RETRY_AFTER_SECONDS: Final = 120.0  # clients stop obeying beyond it
SLOT_RETRY_AFTER_SECONDS: Final = 1.0  # when a slot gets free, nobody knows


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A tenant's limits and what is in use of them, at one moment, under its lock."""

    limits: TenantLimits
    available: float  # tokens; may be negative after a limit was lowered
    held_tokens: int  # by live requests
    num_live: int


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What one request wants. `output_floor` is the least output it can do with, `output_cap` the most."""

    prompt_tokens: int
    output_cap: int
    output_floor: int


@dataclass(frozen=True, kw_only=True)
class Granted:
    """The request may run; `held_tokens` is what the bucket gave for it, None without a token limit."""

    reserved_tokens: int
    max_output_tokens: int
    held_tokens: int | None
    requests: RateState | None
    tokens: RateState | None


@dataclass(frozen=True, kw_only=True)
class NoSlot:
    """Too many live requests. `retry_after_seconds` None: the limit admits none, ever."""

    limit: int
    in_use: int
    retry_after_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class NoTokens:
    """Too few tokens left now. `retry_after_seconds` None: the request is over the whole limit."""

    limit: int
    used: int
    requested: int
    retry_after_seconds: float | None


Decision = Granted | NoSlot | NoTokens


def refill(standing: Standing, *, elapsed_seconds: float) -> Standing:
    """The bucket after `elapsed_seconds` (time that runs backwards counts as none)."""
    limit = standing.limits.tokens_per_minute
    if limit is None:
        return standing
    gained = limit / SECONDS_PER_REFILL * max(elapsed_seconds, 0.0)
    room = limit - standing.held_tokens
    return replace(standing, available=min(standing.available + gained, room))


def decide(standing: Standing, ask: Ask) -> tuple[Standing, Decision]:
    """The answer, and what is left afterwards; a refusal takes nothing."""
    slots = standing.limits.concurrent_requests
    if slots is not None and standing.num_live >= slots:
        wait = SLOT_RETRY_AFTER_SECONDS if slots > 0 else None
        return standing, NoSlot(limit=slots, in_use=standing.num_live, retry_after_seconds=wait)
    limit = standing.limits.tokens_per_minute
    if limit is None:
        return _grant(standing, ask, output=ask.output_cap)
    floor = _floor_under(limit, ask)
    output = min(ask.output_cap, int(standing.available // 1) - ask.prompt_tokens)
    if output < floor:
        return standing, _no_tokens(standing, limit=limit, requested=ask.prompt_tokens + floor)
    return _grant(standing, ask, output=output)


def release(standing: Standing, *, held_tokens: int, used_tokens: int) -> Standing:
    """A live request is over: what it held but did not use goes back."""
    return replace(
        standing,
        available=standing.available + held_tokens - used_tokens,
        held_tokens=standing.held_tokens - held_tokens,
        num_live=standing.num_live - 1,
    )


def change_limit(*, available: float, old: int | None, new: int | None, held_tokens: int) -> float:
    """What the bucket holds under a new limit: what was used stays used; a first limit starts full."""
    if new is None:
        return available
    if old is None:
        return float(new - held_tokens)
    return min(available + new - old, new - held_tokens)


def _floor_under(limit: int, ask: Ask) -> int:
    """A request that can do with less output makes do with what the whole limit can give, if that is any."""
    if ask.output_floor == ask.output_cap:
        return ask.output_floor
    return min(ask.output_floor, max(limit - ask.prompt_tokens, 1))


def _grant(standing: Standing, ask: Ask, *, output: int) -> tuple[Standing, Granted]:
    reserved = ask.prompt_tokens + output
    limited = standing.limits.tokens_per_minute is not None
    after = replace(
        standing,
        available=standing.available - reserved if limited else standing.available,
        held_tokens=standing.held_tokens + reserved if limited else standing.held_tokens,
        num_live=standing.num_live + 1,
    )
    return after, Granted(
        reserved_tokens=reserved,
        max_output_tokens=output,
        held_tokens=reserved if limited else None,
        requests=_slots_left(after),
        tokens=_tokens_left(after),
    )


def _no_tokens(standing: Standing, *, limit: int, requested: int) -> NoTokens:
    used = limit - max(int(standing.available // 1), 0)
    missing = requested - standing.available
    fits = requested <= limit
    wait = min(max(missing * SECONDS_PER_REFILL / limit, 1.0), MAX_RETRY_AFTER_SECONDS) if fits else None
    return NoTokens(limit=limit, used=used, requested=requested, retry_after_seconds=wait)


def _slots_left(standing: Standing) -> RateState | None:
    limit = standing.limits.concurrent_requests
    if limit is None:
        return None
    return RateState(limit=limit, remaining=limit - standing.num_live, reset_seconds=SLOT_RETRY_AFTER_SECONDS)


def _tokens_left(standing: Standing) -> RateState | None:
    limit = standing.limits.tokens_per_minute
    if limit is None:
        return None
    reset = (limit - standing.available) * SECONDS_PER_REFILL / limit if limit else 0.0
    return RateState(limit=limit, remaining=max(int(standing.available // 1), 0), reset_seconds=reset)
