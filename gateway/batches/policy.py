"""Decides whose lines are claimed next, and when one that failed is tried again. Pure.

Each tenant has a counter of tokens that its batches were given, divided by its weight (Sheng et al.,
"Fairness in Serving Large Language Models", 2024); the tenant whose counter is smallest is next.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from gateway.batches.attempts import is_hopeless, pause_seconds
from gateway.errors import DeadlineExceeded, GatewayError, InternalError, LimitReached
from gateway.tenants.ids import TenantId

QUANTUM: Final = 8  # lines of one tenant in a row, so that prompts that begin alike run together
SHORTEST_BUDGET_WAIT_SECONDS: Final = 1.0
LONGEST_BUDGET_WAIT_SECONDS: Final = 15.0
ENGINE_AWAY_SECONDS: Final = 1.0
MOST_FAILURES: Final = 3  # of the engine at one line


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A tenant with lines to claim: its counter and weight, and what a line probably costs in tokens."""

    tenant: TenantId
    served: float
    weight: float
    tokens_per_item: float


def share_out(candidates: Sequence[Candidate], *, room: int) -> Counter[TenantId]:
    """How many lines of each tenant to claim, `room` in all: as if the counters moved with each."""
    queue = [(one.served, index, one) for index, one in enumerate(candidates)]
    heapq.heapify(queue)
    claimed: Counter[TenantId] = Counter()
    while queue and room > 0:
        served, index, one = queue[0]
        num = min(QUANTUM, room)
        room -= num
        claimed[one.tenant] += num
        heapq.heapreplace(queue, (served + num * one.tokens_per_item / one.weight, index, one))
    return claimed


@dataclass(frozen=True, kw_only=True)
class Again:
    """A line is run again later. `counts`: the attempt was one; `holds_up_batch`: its others wait, too."""

    after_seconds: float
    counts: bool
    holds_up_batch: bool = False


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How far a line came, the `number`th time that it was claimed."""

    number: int
    was_at_engine: bool
    has_output: bool


def again(error: GatewayError, attempt: Attempt, *, chance: float) -> Again | None:
    """When to run a line again that failed with `error`; None: the error is its answer.

    What fails while it runs may be the line's fault, so it has few attempts; what never got its turn has any
    number of them, within its batch's window.
    """
    if isinstance(error, LimitReached):
        wait = error.retry_after_seconds
        return None if wait is None else _until_there_is_budget(wait)
    if isinstance(error, DeadlineExceeded):
        return _another(attempt, chance) if attempt.has_output else _untried(chance)
    if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    if isinstance(error, InternalError):
        return _another(attempt, chance)
    if not attempt.was_at_engine:
        return _untried(chance)
    is_over = is_hopeless(attempt.number)
    return None if is_over else Again(after_seconds=pause_seconds(attempt.number + 1, chance), counts=True)


def out_of_budget() -> Again:
    """An answer that a budget would cut short is made again when there is more."""
    return _until_there_is_budget(LONGEST_BUDGET_WAIT_SECONDS)


def _untried(chance: float) -> Again:
    return Again(after_seconds=ENGINE_AWAY_SECONDS * (0.5 + chance), counts=False)


def _another(attempt: Attempt, chance: float) -> Again | None:
    if attempt.number >= MOST_FAILURES:
        return None
    return Again(after_seconds=pause_seconds(attempt.number + 1, chance), counts=True)


def _until_there_is_budget(seconds: float) -> Again:
    """A budget may be raised, or given back elsewhere, before its time is over."""
    wait = min(LONGEST_BUDGET_WAIT_SECONDS, max(SHORTEST_BUDGET_WAIT_SECONDS, seconds))
    return Again(after_seconds=wait, counts=False, holds_up_batch=True)
