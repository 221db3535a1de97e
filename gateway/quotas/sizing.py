"""How much of its limits one request needs, and who asks for more than one may. Pure."""

from typing import Final

import msgspec

from gateway.quotas.limits import QuotaKind, QuotaLimit, Unit
from gateway.quotas.refusals import input_too_long, output_too_long
from gateway.quotas.reservation import Demand
from gateway.quotas.wallet import Want

EXTENSION_TOKENS: Final = 256  # of output, paid for at a time


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What a request wants at once, and the least that it makes do with where nothing comes after that.

    `output_cap` is the most output that it may have in the end: less than was asked for, by `capped_by`.
    """

    want: Want
    least: Want
    output_cap: int
    capped_by: QuotaLimit | None


def sized(limits: tuple[QuotaLimit, ...], demand: Demand, *, tenant_name: str) -> Size:
    """The size of a request under all limits that count for it. Raises InvalidRequest."""
    _check_input(limits, demand, tenant_name)
    bound = _output_bound(limits, demand, tenant_name)
    cap = demand.output_cap if bound is None else bound.value
    first = _first_output(limits, demand, cap=cap)
    want = Want(
        limits=_counted(limits, is_long=demand.is_long),
        prompt_tokens=demand.prompt_tokens,
        output_cap=first,
        output_floor=_output_floor(limits, demand, first=first),
    )
    least = want if _insists(demand) else msgspec.structs.replace(want, output_floor=1)
    return Size(want=want, least=least, output_cap=cap, capped_by=bound)


def _insists(demand: Demand) -> bool:
    """Whether its caller named the length of the output."""
    return demand.output_floor == demand.output_cap


def _counted(limits: tuple[QuotaLimit, ...], *, is_long: bool) -> tuple[QuotaLimit, ...]:
    """Those that this request uses up, rather than being looked at by them."""
    return tuple(
        limit
        for limit in limits
        if limit.is_used_up and (is_long or limit.kind is not QuotaKind.CONCURRENT_LONG_REQUESTS)
    )


def _check_input(limits: tuple[QuotaLimit, ...], demand: Demand, tenant_name: str) -> None:
    for limit in limits:
        if limit.kind is QuotaKind.INPUT_TOKENS and demand.prompt_tokens > limit.value:
            raise input_too_long(
                limit,
                num_prompt_tokens=demand.prompt_tokens,
                tenant_name=tenant_name,
                param=demand.prompt_param,
            )


def _output_bound(limits: tuple[QuotaLimit, ...], demand: Demand, tenant_name: str) -> QuotaLimit | None:
    """What bounds the output below what is asked for; who insists on a number gets that or an error."""
    bounds = [limit for limit in limits if limit.kind is QuotaKind.OUTPUT_TOKENS]
    tightest = min(bounds, key=lambda limit: limit.value, default=None)
    if tightest is None or tightest.value >= demand.output_cap:
        return None
    if _insists(demand) or tightest.value < 1:
        wanted = demand.output_cap if _insists(demand) else 1
        raise output_too_long(tightest, wanted=wanted, tenant_name=tenant_name)
    return tightest


def _budgets(limits: tuple[QuotaLimit, ...]) -> list[int]:
    """Tokens that may be used up, of each limit that counts them."""
    return [one.value for one in limits if one.unit is Unit.TOKENS and one.is_used_up]


def _first_output(limits: tuple[QuotaLimit, ...], demand: Demand, *, cap: int) -> int:
    """What to pay for at once: all that its caller insists on, or a part; without a budget it is free."""
    if _insists(demand) or not _budgets(limits):
        return cap
    return min(cap, max(EXTENSION_TOKENS, demand.output_floor))


def _output_floor(limits: tuple[QuotaLimit, ...], demand: Demand, *, first: int) -> int:
    """Who can do with less output makes do with what the whole limits can give, if that is any."""
    if _insists(demand):
        return demand.output_floor
    wholes = (max(value - demand.prompt_tokens, 1) for value in _budgets(limits))
    return min([demand.output_floor, first, *wholes])
