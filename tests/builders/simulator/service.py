"""Who was served how much, counted from plans alone: the scheduler's own account is not asked."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from engine.core.step import StepPlan
from tests.builders.simulator.requests import Served

PROMPT_CHARGE = 1.0
CACHED_PROMPT_CHARGE = 0.1
OUTPUT_CHARGE = 2.0
"""What the scheduler charges for a token of a greedy sequence; see `engine.core.charging`."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Two tenants who both had work waiting all along, and how far their weighted service drifted apart."""

    tenants: tuple[str, str]
    seconds: float  # how long both waited
    widest: float  # weighted charged tokens, over every interval within


@dataclass
class _Drift:
    """One pair while both wait: the difference of their services, and its extremes."""

    since: float
    until: float
    start: float
    lowest: float = 0.0
    highest: float = 0.0

    def note(self, difference: float, now: float) -> None:
        drifted = difference - self.start
        self.lowest, self.highest = min(self.lowest, drifted), max(self.highest, drifted)
        self.until = now


@dataclass
class ServiceMeter:
    """Charges tenants for the tokens that steps compute for them, the first time that they do.

    `weights` divide what is charged. A tenant is backlogged in a step when a request of its still waits after
    the step was planned.
    """

    weights: Mapping[str, float]
    service: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)  # once a second: all services
    backlogged_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    largest_remaining_output: int = 0  # tokens that a tenant's running requests still had to give, at most
    _num_charged: dict[str, int] = field(default_factory=dict)
    _waiting: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _remaining: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _drifts: dict[tuple[str, str], _Drift] = field(default_factory=dict)
    _gaps: list[Gap] = field(default_factory=list)
    _backlogged: frozenset[str] = frozenset()
    _now: float = 0.0

    def submitted(self, served: Served) -> None:
        """A request begins to wait."""
        self._waiting[served.tenant] += 1

    def planned(self, plan: StepPlan, live: Mapping[str, Served], now: float) -> None:
        """Charges what the plan computes."""
        for row in plan.rows:
            served = live[row.sequence_id]
            charged = self._num_charged.get(row.sequence_id)
            if charged is None:
                charged = self._admit(served, row.start)
            end = row.start + len(row.token_ids)
            if end <= charged:
                continue  # computed again after a preemption: nobody's service
            self._num_charged[row.sequence_id] = end
            cost = PROMPT_CHARGE * max(0, min(end, served.num_prompt_tokens) - charged)
            self._charge(served.tenant, cost + (OUTPUT_CHARGE if row.sampling is not None else 0.0))
        self._note_backlog(now)

    def ended(self, served: Served) -> None:
        """A request is over, however it ended."""
        if self._num_charged.pop(served.id, None) is None:
            self._waiting[served.tenant] -= 1
        else:
            self._remaining[served.tenant] -= served.num_output_tokens - len(served.gaps) - 1

    def sampled(self, served: Served, num_tokens: int, *, is_first: bool) -> None:
        """A running request gave tokens; the first one is counted when it is admitted."""
        self._remaining[served.tenant] -= num_tokens - is_first

    def gaps(self) -> list[Gap]:
        """Of every pair and every time in which both were backlogged without a break."""
        open_gaps = [_gap(pair, drift) for pair, drift in self._drifts.items()]
        return [*self._gaps, *open_gaps]

    def _admit(self, served: Served, num_cached: int) -> int:
        self._waiting[served.tenant] -= 1
        self._charge(served.tenant, CACHED_PROMPT_CHARGE * num_cached)
        self._remaining[served.tenant] += served.num_output_tokens - 1
        self.largest_remaining_output = max(self.largest_remaining_output, self._remaining[served.tenant])
        return num_cached

    def _charge(self, tenant: str, tokens: float) -> None:
        self.service[tenant] += tokens / self.weights.get(tenant, 1.0)

    def _note_backlog(self, now: float) -> None:
        backlogged = frozenset(tenant for tenant, count in self._waiting.items() if count)
        for tenant in backlogged & self._backlogged:
            self.backlogged_seconds[tenant] += now - self._now
        if backlogged != self._backlogged:
            self._pair_up(backlogged, now)
        for (one, other), drift in self._drifts.items():
            drift.note(self.service[one] - self.service[other], now)
        if not self.samples or now - self.samples[-1][0] >= 1.0:
            self.samples.append((now, dict(self.service)))
        self._backlogged, self._now = backlogged, now

    def _pair_up(self, backlogged: Iterable[str], now: float) -> None:
        pairs = set(combinations(sorted(backlogged), 2))
        for pair in self._drifts.keys() - pairs:
            self._gaps.append(_gap(pair, self._drifts.pop(pair)))
        for one, other in pairs - self._drifts.keys():
            difference = self.service[one] - self.service[other]
            self._drifts[one, other] = _Drift(since=now, until=now, start=difference)


def _gap(pair: tuple[str, str], drift: _Drift) -> Gap:
    return Gap(tenants=pair, seconds=drift.until - drift.since, widest=drift.highest - drift.lowest)
