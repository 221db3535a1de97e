"""What the loop has seen, as figures: `[slo]` windows, throughput, and Prometheus metrics.

Written by the loop's thread only; other threads read the immutable snapshots that the loop makes.
"""

from collections import deque
from typing import assert_never

from engine.core.outcome import Broken, Ended, Outcome, Refused, Sampled
from engine.core.sequence import Sequence, SequenceClass
from engine.core.slo import SloMonitor
from engine.core.step import StepPlan
from engine.metrics import Metrics

RATE_HORIZON_SECONDS = 5.0


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


class Telemetry:
    """Turns the loop's plans and outcomes into figures."""

    def __init__(self, monitor: SloMonitor) -> None:
        self.monitor = monitor
        self.metrics = Metrics()
        self.throughput = Throughput()

    def step_done(self, plan: StepPlan, *, seconds: float, now: float) -> None:
        """Counts a computed step."""
        sampled = sum(row.sampling is not None for row in plan.rows)
        decoded = sum(row.sampling is not None and len(row.token_ids) == 1 for row in plan.rows)
        self.metrics.step.observe(seconds)
        self.metrics.prompt_tokens.inc(plan.num_tokens - decoded)
        self.throughput.add(now, prompt_tokens=plan.num_tokens - decoded, generated_tokens=sampled)

    def cancelled(self, seconds: float) -> None:
        """Counts how long a cancel took to free its blocks."""
        self.metrics.cancel_to_free.observe(seconds)

    def record(self, outcomes: list[Outcome], now: float) -> None:
        """Counts what became of sequences."""
        for outcome in outcomes:
            match outcome:
                case Sampled():
                    self._sampled(outcome, now)
                case Ended():
                    self.metrics.ended.labels(outcome.reason.value).inc()
                case Broken():
                    self.metrics.ended.labels("error").inc()
                case Refused():
                    self.metrics.refused.labels(outcome.refusal.reason.value).inc()
                    if outcome.sequence.is_interactive:  # as who is admitted is counted
                        self.monitor.window(now).num_refused += 1
                case _:
                    assert_never(outcome)

    def _sampled(self, outcome: Sampled, now: float) -> None:
        request_class = outcome.sequence.sequence_class.value
        self.metrics.generated_tokens.inc(len(outcome.token_ids))
        if outcome.is_first:
            self._first_token(outcome.sequence, outcome.waited_seconds, now)
            self.metrics.time_to_first_token.labels(request_class).observe(outcome.waited_seconds)
            return
        self.metrics.inter_token_latency.labels(request_class).observe(outcome.waited_seconds)
        if outcome.sequence.is_interactive:
            self.monitor.window(now).itl.add(outcome.waited_seconds * 1000)

    def _first_token(self, sequence: Sequence, waited_seconds: float, now: float) -> None:
        assert sequence.scheduled_at is not None, "a token was sampled, so a step was scheduled"
        queue_wait = sequence.scheduled_at - sequence.arrived_at
        self.metrics.queue_wait.labels(sequence.sequence_class.value).observe(queue_wait)
        if sequence.is_interactive:
            window = self.monitor.window(now)
            window.num_admitted += 1
            window.ttft.add(waited_seconds * 1000)
            window.queue_wait.add(queue_wait * 1000)

    def load(self, *, running: dict[SequenceClass, int], waiting: dict[SequenceClass, int]) -> None:
        """Sets the gauges of who runs and who waits."""
        for sequence_class in SequenceClass:
            self.metrics.running.labels(sequence_class.value).set(running[sequence_class])
            self.metrics.waiting.labels(sequence_class.value).set(waiting[sequence_class])

    def blocks(self, *, used: int, free: int, now: float) -> None:
        """Sets the cache's gauges and the window's utilisation."""
        self.metrics.kv_blocks.labels("used").set(used)
        self.metrics.kv_blocks.labels("free").set(free)
        window = self.monitor.window(now)
        window.kv_cache_utilization = max(window.kv_cache_utilization, used / (used + free))
