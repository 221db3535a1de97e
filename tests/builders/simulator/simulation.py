"""The engine's loop on a machine of the simulator: arrivals, time limits, guardrails, steps.

Does in the order of `engine.loop` what it does: commands, time limits, plan, compute, apply.
"""

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, assert_never

from engine.core.outcome import Broken, Ended, Outcome, Refusal, Refused, Sampled
from engine.core.scheduler import Scheduler
from engine.core.step import StepPlan
from tests.builders.simulator.models import Machine
from tests.builders.simulator.requests import Request, Served
from tests.builders.simulator.service import ServiceMeter

MAX_IDLE_ROUNDS = 100_000
HELD_SECONDS = 0.05  # as `engine.loop` waits when there is work of which none may run


class StepFacts(NamedTuple):
    """One step: when it began, how long it took (seconds), what it computed and might have."""

    started_at: float
    seconds: float
    num_tokens: int
    num_decode_rows: int
    token_budget: int


class Controller(Protocol):
    """Whatever acts beside the steps, once a second, and sees what they bring."""

    def saw(self, outcomes: list[Outcome], now: float) -> None:
        """Outcomes of a step, refusals included."""

    def tick(self, now: float) -> None:
        """A second has passed."""


@dataclass
class Record:
    """All that a simulation saw."""

    requests: list[Served] = field(default_factory=list)
    steps: list[StepFacts] = field(default_factory=list)
    ended_at: float = 0.0

    def of(self, *tenants: str) -> list[Served]:
        """The requests of some tenants."""
        return [served for served in self.requests if served.tenant in tenants]

    def interactive(self) -> list[Served]:
        """The requests that a person waited for."""
        return [served for served in self.requests if served.is_interactive]

    def tokens_per_second(self, start: float, end: float) -> float:
        """Tokens that steps computed between two moments, prompts and outputs alike."""
        return sum(step.num_tokens for step in self.steps if start <= step.started_at < end) / (end - start)


class Simulation:
    """Runs a scheduler on a machine until `until` (seconds), or until all that arrived is over."""

    def __init__(
        self,
        scheduler: Scheduler,
        machine: Machine,
        arrivals: Iterable[Request],
        *,
        meter: ServiceMeter | None = None,
        controller: Controller | None = None,
    ) -> None:
        self.record = Record()
        self._scheduler = scheduler
        self._machine = machine
        self._arrivals = _Arrivals(arrivals)
        self._meter = meter or ServiceMeter(weights={})
        self._controller = controller
        self._next_tick = 1.0
        self._live: dict[str, Served] = {}

    def run(self, until: float = math.inf) -> Record:
        """Raises AssertionError when work is left that no step takes up."""
        num_idle = 0
        while (self._arrivals or self._scheduler.has_work) and self._machine.now() < until:
            num_idle = 0 if self._step(until) else num_idle + 1
            assert num_idle < MAX_IDLE_ROUNDS, "work is waiting that no step takes up"
        self.record.ended_at = self._machine.now()
        return self.record

    def _step(self, until: float) -> bool:
        """One round of the loop; False when there was nothing to compute."""
        now = self._machine.now()
        for request in self._arrivals.until(now):
            self._submit(request, now)
        self._tick(now)
        self._tell(self._scheduler.expire(now), now)
        plan = self._scheduler.plan_step(now)
        if plan is None:
            self._machine.skip_to(min(until, self._next_moment(now)))
            return False
        self._compute(plan, now)
        return True

    def _compute(self, plan: StepPlan, now: float) -> None:
        self._meter.planned(plan, self._live, now)
        result = self._machine.compute(plan)
        ended_at = self._machine.now()
        self._scheduler.observe(plan, ended_at - now)
        facts = StepFacts(now, ended_at - now, plan.num_tokens, plan.num_decode_rows, plan.token_budget)
        self.record.steps.append(facts)
        self._tell(self._scheduler.apply(plan, result, ended_at), ended_at)

    def _submit(self, request: Request, now: float) -> None:
        served = Served(
            id=f"r{len(self.record.requests)}",
            tenant=request.tenant,
            sequence_class=request.sequence_class,
            arrived_at=request.at,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
        )
        self.record.requests.append(served)
        sequence = request.sequence(served.id, owner=served)
        refusal = self._scheduler.submit(sequence, now)
        if refusal is not None:
            _refuse(served, refusal, now)
            self._show([Refused(sequence, refusal)], now)
            return
        self._live[served.id] = served
        self._meter.submitted(served)
        self._machine.expect(served.id, request.num_prompt_tokens + request.num_output_tokens)

    def _tick(self, now: float) -> None:
        if self._controller is not None and now >= self._next_tick:
            self._next_tick = now + 1.0
            self._controller.tick(now)

    def _next_moment(self, now: float) -> float:
        """When there may be something to do again."""
        moments = [self._arrivals.next_at(), self._scheduler.next_alarm_at]
        if self._scheduler.has_work:  # held back: the loop asks again and again
            moments.append(now + HELD_SECONDS)
        if self._controller is not None:
            moments.append(self._next_tick)
        later = [moment for moment in moments if moment is not None]
        return max(now + 1e-6, min(later))

    def _show(self, outcomes: list[Outcome], now: float) -> None:
        if self._controller is not None:
            self._controller.saw(outcomes, now)

    def _tell(self, outcomes: list[Outcome], now: float) -> None:
        if outcomes:
            self._show(outcomes, now)
        for outcome in outcomes:
            served = outcome.sequence.owner
            assert isinstance(served, Served)
            match outcome:
                case Sampled():
                    self._sampled(served, outcome)
                case Ended(sequence, reason):
                    served.num_cached_tokens = sequence.num_cached_tokens
                    served.num_preemptions = sequence.num_preemptions
                    served.output = array("q", sequence.token_ids[sequence.num_prompt_tokens :])
                    self._over(served, reason.value, now)
                case Refused(_, refusal):
                    self._over(served, refusal.reason.value, now)
                    served.refusal = refusal
                case Broken():
                    self._over(served, "error", now)
                case _:
                    assert_never(outcome)

    def _sampled(self, served: Served, outcome: Sampled) -> None:
        self._meter.sampled(served, len(outcome.token_ids), is_first=outcome.is_first)
        if outcome.is_first:
            served.first_token_after = outcome.waited_seconds
            scheduled_at = outcome.sequence.scheduled_at
            assert scheduled_at is not None, "a token was sampled, so a step was scheduled"
            served.queue_wait = scheduled_at - served.arrived_at
        else:
            served.gaps.append(outcome.waited_seconds)

    def _over(self, served: Served, end: str, now: float) -> None:
        served.end, served.ended_at = end, now
        del self._live[served.id]
        self._meter.ended(served)
        self._machine.forget(served.id)


class _Arrivals:
    """Requests in the order of their time, taken when it has come."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests: Iterator[Request] = iter(requests)
        self._next = next(self._requests, None)

    def __bool__(self) -> bool:
        return self._next is not None

    def next_at(self) -> float | None:
        return None if self._next is None else self._next.at

    def until(self, now: float) -> Iterator[Request]:
        while self._next is not None and self._next.at <= now:
            request, self._next = self._next, next(self._requests, None)
            assert self._next is None or self._next.at >= request.at, "arrivals come in order"
            yield request


def _refuse(served: Served, refusal: Refusal, now: float) -> None:
    served.end, served.refusal, served.ended_at = refusal.reason.value, refusal, now
