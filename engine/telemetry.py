"""What the loop has seen, as figures: `[slo]` windows, throughput, and Prometheus metrics.

Written by the loop's thread only; other threads read the immutable snapshots that the loop makes.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, assert_never

from prometheus_client import Counter, Gauge

from engine.core.figures import Figures, FreeCause
from engine.core.outcome import Broken, Ended, Outcome, Refused, Sampled
from engine.core.sequence import Sequence, SequenceClass, WaitReason
from engine.core.service import TenantLoad
from engine.core.slo import SloMonitor
from engine.core.step import StepPlan
from engine.metrics import BucketTally, Metrics, Tally
from engine.tenant_labels import TenantLabels
from engine.tenant_service import Fairness, ServiceWindow

RATE_HORIZON_SECONDS = 5.0

# Prompts of these sizes are told apart, so that what long ones do to short ones shows. Constants, not the
# limit `long_context_threshold`: a row means the same after that limit has changed.
SHORT_PROMPT_TOKENS: Final = 512
MEDIUM_PROMPT_TOKENS: Final = 4096

ADMITTED: Final = "admitted"  # the admission outcome that is no reason to refuse
ERROR: Final = "error"  # the wire's FinishReason of what broke


def prompt_size(num_prompt_tokens: int) -> str:
    """The label of a prompt of this length."""
    if num_prompt_tokens <= SHORT_PROMPT_TOKENS:
        return "short"
    return "medium" if num_prompt_tokens <= MEDIUM_PROMPT_TOKENS else "long"


class Throughput:
    """Tokens per second over the last few seconds."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, *, prompt_tokens: int, generated_tokens: int) -> None:
        """Counts one step's tokens."""
        self._steps.append((now, prompt_tokens, generated_tokens))

    def per_second(self, now: float) -> tuple[float, float]:
        """Prompt and generated tokens per second."""
        while self._steps and now - self._steps[0][0] > RATE_HORIZON_SECONDS:
            self._steps.popleft()
        prompt = sum(step[1] for step in self._steps)
        generated = sum(step[2] for step in self._steps)
        return prompt / RATE_HORIZON_SECONDS, generated / RATE_HORIZON_SECONDS


@dataclass(frozen=True, eq=False, slots=True)
class _TokenRow:
    """Where the tokens of sequences with the same labels are counted."""

    is_interactive: bool
    generated: Tally
    gaps: BucketTally
    tenant_gaps: BucketTally


class _GaugeRows:
    """All rows of a gauge, replaced together: one that is named no more falls to 0."""

    def __init__(self, gauges: Callable[..., Gauge]) -> None:
        self._gauges = gauges
        self._shown: frozenset[tuple[str, ...]] = frozenset()

    def replace(self, rows: Mapping[tuple[str, ...], int]) -> None:
        """Shows `rows`, by label values, and no others."""
        for labels in self._shown - rows.keys():
            self._gauges(*labels).set(0)
        for labels, value in rows.items():
            self._gauges(*labels).set(value)
        self._shown = frozenset(rows)


class Telemetry:
    """Turns the loop's plans and outcomes into figures."""

    def __init__(self, monitor: SloMonitor) -> None:
        self.monitor = monitor
        self.metrics = Metrics()
        self.throughput = Throughput()
        self.fairness = Fairness()
        self._tenants = TenantLabels()
        self._services = ServiceWindow()
        self._waiting = _GaugeRows(self.metrics.waiting_by_reason)
        self._running = _GaugeRows(self.metrics.tenant_running)
        self._published: dict[Counter, int] = {}
        self._token_row = cache(self._make_token_row)
        self._row_of: dict[Sequence, _TokenRow] = {}  # of each that has a token and is not over

    # --- steps -----------------------------------------------------------------------------------------

    def step_done(self, plan: StepPlan, *, seconds: float, now: float) -> None:
        """Counts a computed step."""
        num_tokens = plan.num_tokens
        num_prompt_tokens = num_tokens - plan.num_decode_rows
        sampled = sum(row.sampling is not None for row in plan.rows)
        self.throughput.add(now, prompt_tokens=num_prompt_tokens, generated_tokens=sampled)
        self.metrics.step.observe(seconds)
        self.metrics.step_tokens.observe(num_tokens)
        self._tokens_by_kind(
            decode=plan.num_decode_rows,
            prefill=num_prompt_tokens - plan.num_recomputed_tokens,
            recompute=plan.num_recomputed_tokens,
        )
        if plan.token_budget > 0:
            self.metrics.step_budget.set(plan.token_budget)
            self.metrics.step_budget_used.observe(num_tokens / plan.token_budget)

    def _tokens_by_kind(self, **num_tokens_of: int) -> None:
        for kind, num_tokens in num_tokens_of.items():
            if num_tokens > 0:
                self.metrics.step_tokens_by_kind(kind).observe(num_tokens)

    def cancelled(self, seconds: float) -> None:
        """Counts how long a cancel took to free its blocks."""
        self.metrics.cancel_to_free.observe(seconds)

    # --- requests --------------------------------------------------------------------------------------

    def record(self, outcomes: list[Outcome], now: float) -> None:
        """Counts what became of sequences."""
        self._sampled([outcome for outcome in outcomes if isinstance(outcome, Sampled)], now)
        for outcome in outcomes:
            match outcome:
                case Sampled():
                    pass  # counted all together: a step makes hundreds of them
                case Ended():
                    self._over(outcome.sequence, outcome.reason.value, now)
                case Broken():
                    self._over(outcome.sequence, ERROR, now)
                case Refused():
                    self._refused(outcome, now)
                case _:
                    assert_never(outcome)

    def _sampled(self, outcomes: list[Sampled], now: float) -> None:
        """Counts a step's tokens: row by row, as most of a step's have the same labels and waited as long."""
        num_tokens: defaultdict[_TokenRow, int] = defaultdict(int)
        gaps: defaultdict[tuple[_TokenRow, float], int] = defaultdict(int)
        for sequence, token_ids, waited_seconds, is_first in outcomes:
            row = self._row_of.get(sequence) or self._begin(sequence)
            num_tokens[row] += len(token_ids)
            if is_first:
                self._first_token(sequence, waited_seconds, now)
            else:
                gaps[row, waited_seconds] += 1
        for row, count in num_tokens.items():
            row.generated.inc(count)
        for (row, seconds), count in gaps.items():
            self._gaps(row, seconds, count=count, now=now)

    def _gaps(self, row: _TokenRow, seconds: float, *, count: int, now: float) -> None:
        row.gaps.observe(seconds, count)
        row.tenant_gaps.observe(seconds, count)
        if row.is_interactive:
            itl = self.monitor.window(now).itl
            for _ in range(count):
                itl.add(seconds * 1000)

    def _begin(self, sequence: Sequence) -> _TokenRow:
        """Remembers where to count a sequence's tokens, until it is over."""
        row = self._token_row(
            self._tenants.fold(sequence.tenant_name),
            sequence.sequence_class.value,
            prompt_size(sequence.num_prompt_tokens),
        )
        self._row_of[sequence] = row
        return row

    def _make_token_row(self, tenant: str, request_class: str, size: str) -> _TokenRow:
        return _TokenRow(
            is_interactive=request_class == SequenceClass.INTERACTIVE.value,
            generated=self.metrics.generation_tokens(tenant),
            gaps=self.metrics.inter_token_latency(request_class, size),
            tenant_gaps=self.metrics.tenant_inter_token_latency(tenant, request_class),
        )

    def _first_token(self, sequence: Sequence, waited_seconds: float, now: float) -> None:
        request_class, tenant = sequence.sequence_class.value, self._tenants.fold(sequence.tenant_name)
        size = prompt_size(sequence.num_prompt_tokens)
        self.metrics.time_to_first_token(request_class, size).observe(waited_seconds)
        self.metrics.tenant_time_to_first_token(tenant, request_class).observe(waited_seconds)
        self.metrics.prompt_tokens(tenant).inc(sequence.num_prompt_tokens)
        self.metrics.prompt_tokens_cached(tenant).inc(sequence.num_cached_tokens)
        queue_seconds = self._admitted(sequence)
        if sequence.is_interactive:
            window = self.monitor.window(now)
            window.num_admitted += 1
            window.ttft.add(waited_seconds * 1000)
            window.queue_wait.add(queue_seconds * 1000)

    def _admitted(self, sequence: Sequence) -> float:
        """Counts a sequence that had its turn, once; says how long it waited for it, in seconds."""
        assert sequence.scheduled_at is not None, "a token was sampled, so a step was scheduled"
        queue_seconds = sequence.scheduled_at - sequence.arrived_at
        request_class, tenant = sequence.sequence_class.value, self._tenants.fold(sequence.tenant_name)
        self.metrics.admission_outcomes(ADMITTED, request_class, tenant).inc()
        self.metrics.queue_time(request_class).observe(queue_seconds)
        self.metrics.tenant_queue_time(tenant, request_class).observe(queue_seconds)
        return queue_seconds

    def _over(self, sequence: Sequence, finished_reason: str, now: float) -> None:
        request_class, tenant = sequence.sequence_class.value, self._tenants.fold(sequence.tenant_name)
        self.metrics.ended(finished_reason, request_class, tenant).inc()
        self._row_of.pop(sequence, None)
        if sequence.scheduled_at is None:
            return  # cancelled while it waited: it has no times of service
        if sequence.first_token_at is None:
            self._admitted(sequence)
        else:
            self._answered(sequence, first_token_at=sequence.first_token_at, now=now)
        size = prompt_size(sequence.num_prompt_tokens)
        self.metrics.e2e_latency(request_class, size).observe(now - sequence.arrived_at)
        self.metrics.inference_time(request_class).observe(now - sequence.scheduled_at)
        self.metrics.request_prompt_tokens(request_class).observe(sequence.num_prompt_tokens)
        self.metrics.request_generation_tokens(request_class).observe(sequence.num_output_tokens)

    def _answered(self, sequence: Sequence, *, first_token_at: float, now: float) -> None:
        assert sequence.scheduled_at is not None, "it has a token, so a step was scheduled"
        request_class, size = sequence.sequence_class.value, prompt_size(sequence.num_prompt_tokens)
        self.metrics.prefill_time(request_class).observe(first_token_at - sequence.scheduled_at)
        self.metrics.decode_time(request_class).observe(now - first_token_at)
        if sequence.num_output_tokens > 1:
            per_token = (now - first_token_at) / (sequence.num_output_tokens - 1)
            self.metrics.time_per_output_token(request_class).observe(per_token)
            self.metrics.longest_gap(request_class, size).observe(sequence.longest_gap_seconds)

    def _refused(self, outcome: Refused, now: float) -> None:
        sequence, refusal = outcome.sequence, outcome.refusal
        request_class, tenant = sequence.sequence_class.value, self._tenants.fold(sequence.tenant_name)
        self.metrics.admission_outcomes(refusal.reason.value, request_class, tenant).inc()
        if refusal.wait_reason is not None:
            self.metrics.waiting_timeouts(refusal.wait_reason.value, request_class).inc()
        if sequence.is_interactive:  # as who is admitted is counted
            self.monitor.window(now).num_refused += 1

    # --- states, told a few times a second -------------------------------------------------------------

    def load(self, *, running: dict[SequenceClass, int], waiting: dict[SequenceClass, int]) -> None:
        """Sets the gauges of who runs and who waits."""
        for sequence_class in SequenceClass:
            self.metrics.running(sequence_class.value).set(running[sequence_class])
            self.metrics.waiting(sequence_class.value).set(waiting[sequence_class])

    def blocks(self, *, used: int, free: int, now: float, cached: int = 0) -> None:
        """Sets the cache's gauges and the window's utilisation.

        The three add up to all blocks: `cached` ones hold text that nobody uses, `free` ones hold none.
        """
        for state, count in (("used", used), ("cached", cached), ("free", free)):
            self.metrics.kv_blocks(state).set(count)
        utilization = used / (used + cached + free)
        self.metrics.kv_cache_usage.set(utilization)
        window = self.monitor.window(now)
        window.kv_cache_utilization = max(window.kv_cache_utilization, utilization)

    def figures(self, figures: Figures, *, num_evicted_blocks: int) -> None:
        """Publishes what the scheduler counted since the last call; all counts are since the start."""
        for sequence_class in SequenceClass:
            count = figures.num_preemptions[sequence_class]
            self._publish(self.metrics.preemptions(sequence_class.value), count)
        for cause in FreeCause:
            self._publish(self.metrics.blocks_freed(cause.value), figures.num_blocks_freed[cause])
        self._publish(self.metrics.blocks_evicted, num_evicted_blocks)
        self._publish(self.metrics.recomputed_tokens, figures.num_recomputed_tokens)
        self._publish(self.metrics.prefix_cache_queries, figures.num_prefix_queried_tokens)
        self._publish(self.metrics.prefix_cache_hits, figures.num_prefix_hit_tokens)

    def _publish(self, counter: Counter, total: int) -> None:
        counter.inc(total - self._published.get(counter, 0))
        self._published[counter] = total

    def waiting(self, counts: Mapping[tuple[str, SequenceClass, WaitReason], int]) -> None:
        """Sets how many wait, by tenant's name, class and what for; who is left out has none waiting."""
        rows: defaultdict[tuple[str, ...], int] = defaultdict(int)
        for (tenant, sequence_class, reason), count in counts.items():
            rows[self._tenants.fold(tenant), sequence_class.value, reason.value] += count
        self._waiting.replace(rows)

    def services(self, tenants: Iterable[TenantLoad], *, now: float) -> None:
        """Takes in what each tenant has been given and has to do; `fairness` then speaks of `now`."""
        rows = list(tenants)
        increases = self._services.look(rows, now)
        running: defaultdict[tuple[str, ...], int] = defaultdict(int)
        for row in rows:
            label = self._tenants.fold(row.name)
            running[(label,)] += row.running
            self.metrics.tenant_service(label).inc(increases.get(row.tenant, 0.0))
        self._running.replace(running)
        self.fairness = self._services.fairness()
        index = self.fairness.index
        self.metrics.fairness_index.set(float("nan") if index is None else index)

    def guardrail_level(self, level: int) -> None:
        """Sets where the guardrails stand: 0 is normal."""
        self.metrics.guardrail_level.set(level)
