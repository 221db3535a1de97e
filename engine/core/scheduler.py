"""Which tokens of which sequences the next step computes, and what its result means for them.

Pure: no tensors, no clock, no I/O. The loop passes `now` in (seconds, monotonic) and hands plans to a runner.

    submit ──refusal?──▶ waiting ──admit──▶ running ──apply──▶ over
                            ▲                  │
                            └── preempted ◀────┘ (blocks taken back; computed again from its tokens)
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from engine.core import admission
from engine.core.kv_cache import KvCache
from engine.core.lanes import Lanes
from engine.core.limits import Limits
from engine.core.outcome import Broken, Ended, Outcome, Refusal, RefusalReason, Refused, Sampled
from engine.core.sequence import EndReason, Sequence, SequenceClass
from engine.core.step import PlannedRow, SamplingParams, StepPlan, StepResult


class Scheduler:
    """Owns all sequences of the engine and their cache blocks. One thread uses it."""

    def __init__(
        self, *, limits: Limits, kv_cache: KvCache, vocab_size: int, max_num_waiting: int = 4096
    ) -> None:
        self.limits = limits
        self.kv_cache = kv_cache
        self._vocab_size = vocab_size
        self._max_num_waiting = max_num_waiting
        self._waiting = {sequence_class: Lanes() for sequence_class in SequenceClass}
        self._preempted: list[Sequence] = []  # by arrival: they keep their place before all who wait
        self._running: list[Sequence] = []  # by arrival
        self._step_id = 0

    # --- what waits and runs ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether any sequence is not over."""
        return bool(self._running or self._preempted) or any(len(queue) for queue in self._waiting.values())

    def num_running(self, sequence_class: SequenceClass) -> int:
        """Sequences of a class in the running set."""
        return sum(sequence.sequence_class is sequence_class for sequence in self._running)

    def num_waiting(self, sequence_class: SequenceClass) -> int:
        """Sequences of a class that wait for their first step, or to be taken up again."""
        preempted = sum(sequence.sequence_class is sequence_class for sequence in self._preempted)
        return len(self._waiting[sequence_class]) + preempted

    def sequences(self) -> Iterator[Sequence]:
        """Every sequence that is not over."""
        return chain(self._running, self._preempted, *self._waiting.values())

    # --- commands --------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> Refusal | None:
        """Takes `sequence` into its queue, or says why it never can run."""
        queue = self._waiting[sequence.sequence_class]
        if len(queue) >= self._max_num_waiting:
            return Refusal(RefusalReason.QUEUE_FULL, f"{len(queue)} requests are waiting already")
        refusal = admission.refusal(
            sequence, limits=self.limits, kv_cache=self.kv_cache, vocab_size=self._vocab_size
        )
        if refusal is None:
            lane = queue.long if self._is_long(sequence) else queue.short
            lane.push(tenant=sequence.tenant, key=sequence.id, item=sequence)
        return refusal

    def cancel(self, sequence: Sequence) -> Outcome:
        """Ends a sequence wherever it is; its blocks are free at once."""
        return self._end(sequence, EndReason.CANCELLED)

    def expire(self, now: float) -> list[Outcome]:
        """Ends what has run out of time: waited too long, or past its deadline."""
        return [self._expired(sequence, now) for sequence in self._overdue(now)]

    # --- the step --------------------------------------------------------------------------------------

    def plan_step(self, now: float) -> StepPlan | None:
        """The next step, or None when nothing can be computed.

        1. Every decoding sequence gets its one token; no prefill ever takes its place.
        2. Prefills that run go on, in order of arrival, a chunk each.
        3. New sequences are admitted while there is room: preempted ones, then interactive, then offline.
        """
        budget = self.limits.max_num_batched_tokens
        rows = [self._row(sequence, 1) for sequence in self._decoding_with_slots()]
        budget = min(budget - len(rows), self.limits.max_num_prefill_tokens)
        for sequence in self._prefilling():
            if budget == 0:
                break
            rows.append(self._chunk(sequence, budget))
            budget -= len(rows[-1].token_ids)
        while budget > 0 and (admitted := self._admit_next(now)) is not None:
            rows.append(self._chunk(admitted, budget))
            budget -= len(rows[-1].token_ids)
        if not rows:
            return None
        self._step_id += 1
        return StepPlan(step_id=self._step_id, rows=tuple(rows))

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[Outcome]:
        """Moves the plan's sequences forward by what was computed and sampled."""
        running = {sequence.id: sequence for sequence in self._running}
        outcomes: list[Outcome] = []
        for row in plan.rows:
            sequence = running[row.sequence_id]
            error = result.errors.get(row.sequence_id)
            if error is not None:
                self._forget(sequence)
                outcomes.append(Broken(sequence, error))
                continue
            sequence.advance(len(row.token_ids))
            outcomes.extend(self._take_tokens(sequence, result.sampled.get(row.sequence_id, ()), now))
        return outcomes

    def fail(self, plan: StepPlan, error: str) -> list[Outcome]:
        """Ends every sequence of a step that could not be computed; all others go on."""
        in_plan = {row.sequence_id for row in plan.rows}
        failed = [sequence for sequence in self._running if sequence.id in in_plan]
        for sequence in failed:
            self._forget(sequence)
        return [Broken(sequence, error) for sequence in failed]

    def check_integrity(self) -> None:
        """Raises AssertionError if blocks leaked or are held twice. For tests and idle moments."""
        self.kv_cache.check_integrity(self.sequences())

    # --- running ---------------------------------------------------------------------------------------

    def _decoding_with_slots(self) -> list[Sequence]:
        """Decoding sequences, each with a slot for its newest token; makes room by preempting others."""
        for sequence in self._running.copy():
            while sequence.is_decoding and not self.kv_cache.grow(sequence):
                self._preempt(self._victim())  # possibly the sequence itself, which then decodes no more
        return [sequence for sequence in self._running if sequence.is_decoding]

    def _prefilling(self) -> list[Sequence]:
        return [sequence for sequence in self._running if not sequence.is_decoding]

    def _chunk(self, sequence: Sequence, budget: int) -> PlannedRow:
        size = min(sequence.num_uncomputed_tokens, self.limits.prefill_chunk_size, budget)
        return self._row(sequence, size)

    def _row(self, sequence: Sequence, num_tokens: int) -> PlannedRow:
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + num_tokens
        return PlannedRow(
            sequence_id=sequence.id,
            token_ids=tuple(sequence.token_ids[start:end]),
            start=start,
            block_table=tuple(sequence.block_table),
            sampling=_sampling(sequence) if end == sequence.num_tokens else None,
        )

    def _take_tokens(self, sequence: Sequence, token_ids: tuple[int, ...], now: float) -> list[Outcome]:
        if not token_ids:
            return []
        is_first = sequence.num_output_tokens == 0
        waited_seconds = now - sequence.waiting_for_token_since
        kept, reason = _append_until_end(sequence, token_ids)
        if is_first:
            sequence.first_token_at = now
        sequence.waiting_for_token_since = now
        sampled = Sampled(sequence, kept, waited_seconds, is_first)
        return [sampled] if reason is None else [sampled, self._end(sequence, reason)]

    # --- memory ----------------------------------------------------------------------------------------

    def _victim(self) -> Sequence:
        """Who gives its blocks back: offline before interactive, the newest first: the oldest progresses."""
        return max(self._running, key=lambda sequence: (not sequence.is_interactive, sequence.arrived_at))

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.kv_cache.release(sequence)
        self._preempted.append(sequence)
        self._preempted.sort(key=lambda waiting: waiting.arrived_at)

    def _admit_next(self, now: float) -> Sequence | None:
        """Moves the next sequence into the running set if it fits with its whole known text."""
        candidate = self._next_waiting()
        if candidate is None or len(self._running) >= self.limits.max_num_seqs or not self._fits(candidate):
            return None
        self._take_from_waiting(candidate)
        assert self.kv_cache.grow(candidate)
        if candidate.scheduled_at is None:
            candidate.scheduled_at = now
        self._running.append(candidate)
        self._running.sort(key=lambda running: running.arrived_at)
        return candidate

    def _fits(self, sequence: Sequence) -> bool:
        needed = self.kv_cache.num_used_blocks + self.kv_cache.missing_blocks(sequence)
        if not self._running:  # what runs alone may use the whole cache, so nothing waits for ever
            return needed <= self.kv_cache.num_blocks
        return needed <= admission.usable_blocks(self.kv_cache, self.limits)

    # --- waiting ---------------------------------------------------------------------------------------

    def _next_waiting(self) -> Sequence | None:
        """Interactive before offline; within a class, whoever was preempted before the newly arrived."""
        num_long = sum(self._is_long(sequence) for sequence in self._started())
        may_be_long = num_long < self.limits.max_num_long_context_seqs
        for sequence_class in SequenceClass:
            for sequence in self._preempted:
                if sequence.sequence_class is sequence_class:
                    return sequence
            waiting = self._waiting[sequence_class].next(may_be_long=may_be_long)
            if waiting is not None:
                return waiting
        return None

    def _is_long(self, sequence: Sequence) -> bool:
        return sequence.num_prompt_tokens > self.limits.long_context_threshold

    def _take_from_waiting(self, sequence: Sequence) -> None:
        if sequence in self._preempted:
            self._preempted.remove(sequence)
        else:
            lanes = self._waiting[sequence.sequence_class]
            taken = (lanes.long if sequence.id in lanes.long else lanes.short).pop()
            assert taken is sequence, "admission takes whose turn it is"

    def _overdue(self, now: float) -> list[Sequence]:
        patience = self.limits.waiting_timeout_ms / 1000
        waiting = [
            sequence
            for queue in self._waiting.values()
            for sequence in queue
            if now >= sequence.deadline or now - sequence.arrived_at >= patience
        ]
        started = [sequence for sequence in self._started() if now >= sequence.deadline]
        return waiting + started

    def _started(self) -> Iterable[Sequence]:
        return chain(self._running, self._preempted)

    def _expired(self, sequence: Sequence, now: float) -> Outcome:
        if sequence.scheduled_at is not None:
            return self._end(sequence, EndReason.DEADLINE)
        self._forget(sequence)
        waited = f"waited {now - sequence.arrived_at:.1f} s"
        if now >= sequence.deadline:
            detail = f"the request's time ran out before its turn came ({waited})"
            return Refused(sequence, Refusal(RefusalReason.DEADLINE_INFEASIBLE, detail))
        return Refused(sequence, Refusal(RefusalReason.WAITING_TIMEOUT, f"no room came free ({waited})"))

    # --- ends ------------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence, reason: EndReason) -> Ended:
        self._forget(sequence)
        return Ended(sequence, reason)

    def _forget(self, sequence: Sequence) -> None:
        """Takes the sequence out of wherever it is and frees its blocks."""
        lanes = self._waiting[sequence.sequence_class]
        if lanes.short.remove(sequence.id) is not None or lanes.long.remove(sequence.id) is not None:
            return
        if sequence in self._preempted:
            self._preempted.remove(sequence)
            return
        self._running.remove(sequence)
        self.kv_cache.release(sequence)


def _append_until_end(
    sequence: Sequence, token_ids: tuple[int, ...]
) -> tuple[tuple[int, ...], EndReason | None]:
    """Appends tokens up to the one that ends the sequence, if one does: what was kept, and why it ended."""
    for count, token_id in enumerate(token_ids, start=1):
        sequence.token_ids.append(token_id)
        reason = sequence.end_reason()
        if reason is not None:
            return token_ids[:count], reason
    return token_ids, None


def _sampling(sequence: Sequence) -> SamplingParams:
    params = sequence.params
    may_not_stop_yet = sequence.num_output_tokens < params.min_tokens
    return SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=params.seed,
        banned_token_ids=tuple(sorted(params.stop_token_ids)) if may_not_stop_yet else (),
    )
