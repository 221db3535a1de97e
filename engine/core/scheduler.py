"""Which tokens of which sequences the next step computes, and what its result means for them.

Pure: no tensors, no clock, no I/O. The loop passes `now` in (seconds, monotonic) and hands plans to a runner.

    submit ──refusal?──▶ waiting ──admit──▶ running ──apply──▶ over
                            ▲                  │
                            └───── parked ◀────┘ (gave its seat or some of its tail blocks to others)

This file takes commands and applies results. How a step is filled is `planner.py`: read that first.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from engine.core import admission
from engine.core.alarms import Alarms
from engine.core.charging import OUTPUT_TOKEN_COST
from engine.core.figures import Figures, FreeCause
from engine.core.guardrails import Restrictions
from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.lines import Lines
from engine.core.memory import Memory
from engine.core.outcome import Broken, Ended, Outcome, Refusal, RefusalReason, Refused, Sampled
from engine.core.planner import Planner
from engine.core.predictor import StepLoad, StepTimeModel
from engine.core.restraint import Restraint
from engine.core.roster import Roster
from engine.core.sequence import EndReason, Sequence, SequenceClass, WaitReason
from engine.core.service import HORIZON_SECONDS, RecentService, TenantLoad
from engine.core.step import PlannedRow, StepPlan, StepResult

TURNED_AWAY = (RefusalReason.LONG_CONTEXT_DEGRADED, RefusalReason.RATE_SHARE)  # what only guardrails refuse
MAX_DRAIN_SECONDS = 60.0  # nobody is told to come back later than that
OVER_SHARE = 1.1  # times its fair part of recent service
CAUSES = {
    EndReason.STOP: FreeCause.FINISHED,
    EndReason.LENGTH: FreeCause.FINISHED,
    EndReason.CANCELLED: FreeCause.CANCELLED,
    EndReason.DEADLINE: FreeCause.DEADLINE,
}


class Scheduler:
    """Owns all sequences of the engine and their cache blocks. One thread uses it."""

    def __init__(
        self,
        *,
        limits: Limits,
        kv_cache: KvCache,
        vocab_size: int,
        itl_guard_seconds: float | None = None,
        prefill_pair_cost: float = 0.0,
        max_num_waiting: int = 4096,
        max_num_waiting_per_tenant: int = 2048,
    ) -> None:
        """`itl_guard_seconds`: no prefill makes a step predictably longer while somebody reads along.

        `prefill_pair_cost`: see StepTimeModel.
        """
        self.kv_cache = kv_cache
        self.figures = Figures()
        self.step_time = StepTimeModel(prefill_pair_cost)
        self._vocab_size = vocab_size
        self._max_num_waiting = max_num_waiting
        self._max_num_waiting_per_tenant = max_num_waiting_per_tenant
        self._restraint = Restraint(limits)
        self._roster = Roster()
        self._memory = Memory(kv_cache, self.figures)
        self._alarms = Alarms()
        self._planner = Planner(
            roster=self._roster,
            memory=self._memory,
            restraint=self._restraint,
            step_time=self.step_time,
            figures=self.figures,
            itl_guard_seconds=itl_guard_seconds,
        )
        self._turned_away = RecentService()
        self._step_id = 0

    # --- commands --------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence, now: float) -> Refusal | None:
        """Takes `sequence` into its queue, or says why it cannot run."""
        refusal = self._refusal(sequence, now)
        if refusal is not None and refusal.reason in TURNED_AWAY:
            cost = sequence.num_prompt_tokens + OUTPUT_TOKEN_COST * self._memory.expected_remaining(sequence)
            self._turned_away.add(sequence.tenant, cost, now)
        if refusal is None:
            room = self._roster.room_of(sequence)
            room.push(sequence, is_long=self._planner.is_long(sequence))
            self._alarms.set(sequence, self._gives_up_at(sequence))
        return refusal

    def cancel(self, sequence: Sequence) -> Outcome:
        """Ends a sequence wherever it is; its blocks are free at once."""
        return self._end(sequence, EndReason.CANCELLED)

    def extend(self, sequence: Sequence, num_paid_tokens: int, *, is_last: bool) -> Outcome | None:
        """So many tokens of output are paid for now; after the last extension the sequence ends with these.

        One that was paid for as a whole stays as it is.
        """
        if sequence.num_paid_tokens is None:
            return None
        sequence.num_paid_tokens = max(sequence.num_paid_tokens, num_paid_tokens)
        if not is_last:
            return None
        most = min(sequence.params.max_tokens, sequence.num_paid_tokens)
        sequence.params = replace(sequence.params, max_tokens=most)
        return self._end(sequence, EndReason.LENGTH) if sequence.num_output_tokens >= most else None

    def expire(self, now: float) -> list[Outcome]:
        """Ends what has run out of time: waited too long, or cannot meet its deadline any more."""
        due = self._alarms.ring(now)
        outcomes = [self._expired(sequence, now) for sequence in due]
        return [outcome for outcome in outcomes if outcome is not None]

    def set_limits(self, limits: Limits) -> list[Outcome]:
        """Swaps the limits; what waits and can never run under the new ones is refused."""
        self._restraint.want(limits)
        newcomers = [sequence for sequence in self._roster.waiting() if sequence.scheduled_at is None]
        outcomes: list[Outcome] = []
        for sequence in newcomers:
            self._alarms.set(sequence, self._gives_up_at(sequence))
            refusal = self._never_runs(sequence)
            if refusal is not None:
                outcomes.append(self._refuse(sequence, refusal))
        return outcomes

    def order_weights(self, weights: Mapping[str, float]) -> None:
        """These tenants' weights count from the next step on, whatever their requests say."""
        for room in self._roster.rooms.values():
            room.share.order_weights(weights)

    def restrict(self, restrictions: Restrictions) -> None:
        """What the guardrails take away, from the next step on."""
        self._restraint.restrict(restrictions)

    # --- the step --------------------------------------------------------------------------------------

    def plan_step(self, now: float) -> StepPlan | None:
        """The next step, or None when nothing can be computed."""
        draft = self._planner.plan(self._step_id + 1, now)
        if draft.is_empty and self._planner.somebody_gave_way:
            draft = self._planner.plan(self._step_id + 1, now)  # for whom, it is known only now
        if draft.is_empty:
            return None
        self._step_id += 1
        self.figures.num_recomputed_tokens += draft.num_recomputed_tokens
        return draft.plan(self._step_id)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[Outcome]:
        """Moves the plan's sequences forward by what was computed and sampled."""
        outcomes: list[Outcome] = []
        running, errors, sampled = self._roster.running, result.errors, result.sampled
        block_size = self.kv_cache.block_size
        for sequence_id, computed, start, _, sampling in plan.rows:
            sequence = running.get(sequence_id)
            if sequence is None:
                continue  # over since the step was launched
            if errors and sequence_id in errors:
                outcomes.append(self._break(sequence, errors[sequence_id]))
                continue
            try:
                sequence.num_computed_tokens = num_computed = start + len(computed)
                if num_computed % block_size == 0 or sequence.first_token_at is None or len(computed) > 1:
                    self._note_computed(sequence)
                token_ids = sampled.get(sequence_id)
                if token_ids:
                    self._take_tokens(sequence, token_ids, now, outcomes)
                elif sampling is not None:  # it would have nothing left to compute, and wait for ever
                    outcomes.append(self._break(sequence, "the step brought no token for this request"))
            except Exception as exception:  # whatever is wrong with one request ends that one alone
                outcomes.append(self._break(sequence, f"the request's bookkeeping failed: {exception!r}"))
        return outcomes

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learns how long a step of this load takes."""
        load = StepLoad(
            plan.num_prefill_tokens, plan.num_decode_rows, plan.num_context_tokens, plan.num_prefill_pairs
        )
        self.step_time.observe(load, seconds)

    def newest(self, plan: StepPlan) -> set[str]:
        """Whom to leave out when a step fails: those in their first step, or else who came last."""
        rows = [row for row in plan.rows if row.sequence_id in self._roster.running]
        fresh = {row.sequence_id for row in rows if self._is_first_step(row)}
        if 0 < len(fresh) < len(rows):
            return fresh
        running = (self._roster.running[row.sequence_id] for row in rows)
        return {max(running, key=lambda sequence: (sequence.arrived_at, sequence.id)).id}

    def fail(self, sequence_ids: Iterable[str], error: str) -> list[Outcome]:
        """Ends sequences whose part of a step could not be computed; all others go on."""
        running = self._roster.running
        return [self._break(running[each], error) for each in sequence_ids if each in running]

    # --- what waits and runs ---------------------------------------------------------------------------

    @property
    def limits(self) -> Limits:
        """The limits in force: those wanted, less what the guardrails take."""
        return self._restraint.limits

    @property
    def quantum(self) -> int:
        """How far behind its turn, in charged tokens, a tenant may stay for the sake of cached prefixes."""
        return self._planner.quantum

    @property
    def has_work(self) -> bool:
        """Whether any sequence is not over."""
        return bool(self._roster.running) or any(len(room) for room in self._roster.rooms.values())

    @property
    def is_held_back(self) -> bool:
        """Whether no step is owed to what is there: offline work is paused, or output is not paid for."""
        offline = SequenceClass.OFFLINE
        is_paused = self._restraint.restrictions.pauses_offline
        if any(room for sequence_class, room in self._roster.rooms.items() if sequence_class is not offline):
            return False
        if self._roster.rooms[offline] and not is_paused:
            return False
        return all(
            each.is_unpaid or (is_paused and not each.is_interactive)
            for each in self._roster.running.values()
        )

    @property
    def next_alarm_at(self) -> float | None:
        """When something runs out of time, at the earliest."""
        return self._alarms.next_at

    def num_running(self, sequence_class: SequenceClass) -> int:
        """Sequences of a class in the running set."""
        return self._roster.num_running[sequence_class]

    def num_waiting(self, sequence_class: SequenceClass) -> int:
        """Sequences of a class that wait for their first step, or to be taken up again."""
        return len(self._roster.rooms[sequence_class])

    def sequences(self) -> Iterator[Sequence]:
        """Every sequence that is not over."""
        return iter(self._roster)

    def running(self) -> Iterator[Sequence]:
        """The running set."""
        return iter(self._roster.running.values())

    def virtual(self, sequence_class: SequenceClass, tenant: str) -> float:
        """A tenant's fair-share counter: charged tokens over its weight."""
        return self._roster.rooms[sequence_class].share.virtual(tenant)

    def waiting_ages(
        self, sequence_class: SequenceClass, now: float, *, late_seconds: float
    ) -> tuple[float, int]:
        """How long the oldest newcomer of a class has waited, 0 without any, and how many are late.

        Who waits because of its own tenant's flood is not late: nothing that is given up would help.
        """
        oldest, num_late = 0.0, 0
        room = self._roster.rooms[sequence_class]
        for lane in (room.short, room.long):
            for tenant in lane.tenants:
                if self._is_over_share(lane.head(tenant), now):
                    continue
                for line in lane.all_of(tenant):
                    age, num_late_in_line = _waiting_ages(line, now, late_seconds)
                    oldest, num_late = max(oldest, age), num_late + num_late_in_line
        return oldest, num_late

    def service(self, sequence_class: SequenceClass) -> float:
        """What all tenants of a class were charged."""
        return self._roster.rooms[sequence_class].share.total_service

    def served_per_second(self, now: float, seconds: float) -> float:
        """Charged tokens per second over the last `seconds`, of all tenants."""
        return sum(self._roster.service.recent(now, seconds).values()) / seconds

    def turned_away_per_second(self, now: float, seconds: float) -> float:
        """What requests that guardrails refused would have been charged, per second."""
        return sum(self._turned_away.recent(now, seconds).values()) / seconds

    def wait_reason(self, sequence: Sequence) -> WaitReason:
        """Why a waiting sequence was not taken up by the latest step."""
        room = self._roster.room_of(sequence)
        lane = room.long if sequence.id in room.long else room.short
        return self._planner.waits.of.get(sequence.id) or self._lane_reason(
            sequence.sequence_class, lane, sequence.tenant
        )

    def waiting_counts(self) -> Counter[tuple[str, SequenceClass, WaitReason]]:
        """How many wait, by tenant, class and what for. Looks at tenants, not at all that wait."""
        counts: Counter[tuple[str, SequenceClass, WaitReason]] = Counter()
        for sequence_class, room in self._roster.rooms.items():
            for lane in (room.short, room.long):
                for tenant in lane.tenants:
                    reason = self._lane_reason(sequence_class, lane, tenant)
                    counts[(tenant, sequence_class, reason)] += lane.num_waiting(tenant)
        for sequence in self._noted():
            room = self._roster.room_of(sequence)
            lane = room.long if sequence.id in room.long else room.short
            usual = self._lane_reason(sequence.sequence_class, lane, sequence.tenant)
            counts[(sequence.tenant, sequence.sequence_class, usual)] -= 1
            counts[(sequence.tenant, sequence.sequence_class, self.wait_reason(sequence))] += 1
        return +counts

    def tenant_loads(self) -> list[TenantLoad]:
        """Every tenant that has something here."""
        names = {sequence.tenant: sequence.tenant_name for sequence in self._roster.running.values()}
        running = Counter(sequence.tenant for sequence in self._roster.running.values())
        waiting: Counter[str] = Counter()
        for room in self._roster.rooms.values():
            for lane in (room.short, room.long):
                for tenant in lane.tenants:
                    names[tenant] = lane.head(tenant).tenant_name
                    waiting[tenant] += lane.num_waiting(tenant)
        shares = [room.share for room in self._roster.rooms.values()]
        return [
            TenantLoad(
                tenant,
                names[tenant],
                shares[0].weight(tenant),
                running[tenant],
                waiting[tenant],
                sum(share.service(tenant) for share in shares),
            )
            for tenant in sorted(names)
        ]

    def check_integrity(self) -> None:
        """Raises AssertionError if blocks leaked or are held twice. For tests and idle moments."""
        self.kv_cache.check_integrity(self.sequences())
        self._roster.check_integrity()

    # --- refusals --------------------------------------------------------------------------------------

    def _refusal(self, sequence: Sequence, now: float) -> Refusal | None:
        room = self._roster.room_of(sequence)
        if len(room) >= self._max_num_waiting:
            return Refusal(RefusalReason.QUEUE_FULL, f"{len(room)} requests are waiting already")
        num_waiting = room.num_waiting(sequence.tenant)
        if num_waiting >= self._max_num_waiting_per_tenant:
            detail = f"{num_waiting} requests of yours are waiting already"
            return Refusal(RefusalReason.TENANT_QUEUE_FULL, detail, self._drain_seconds(sequence, now))
        return self._never_runs(sequence) or self._too_late(sequence, now) or self._held_off(sequence, now)

    def _never_runs(self, sequence: Sequence) -> Refusal | None:
        return admission.refusal(
            sequence, limits=self.limits, kv_cache=self.kv_cache, vocab_size=self._vocab_size
        )

    def _too_late(self, sequence: Sequence, now: float) -> Refusal | None:
        needed = self._least_seconds(sequence)
        if now + needed < sequence.deadline:
            return None
        left = max(0.0, sequence.deadline - now)
        return Refusal(
            RefusalReason.DEADLINE_INFEASIBLE,
            f"an answer takes at least {needed:.2f} s and {left:.2f} s are left",
        )

    def _held_off(self, sequence: Sequence, now: float) -> Refusal | None:
        """What the guardrails refuse for the time being."""
        restrictions, threshold = self._restraint.restrictions, self.limits.long_context_threshold
        if restrictions.refuses_long_context and sequence.num_prompt_tokens > threshold:
            detail = f"prompts of more than {threshold} tokens are not taken while service levels are missed"
            return Refusal(RefusalReason.LONG_CONTEXT_DEGRADED, detail)
        if restrictions.refuses_over_share and sequence.is_interactive and self._is_over_share(sequence, now):
            detail = "service levels are missed, and you have had more than your share of the last 10 s"
            return Refusal(RefusalReason.RATE_SHARE, detail, self._drain_seconds(sequence, now))
        return None

    def _is_over_share(self, sequence: Sequence, now: float) -> bool:
        """Whether the tenant had more than its weight's part of recent service, and waits for yet more."""
        room, recent = self._roster.room_of(sequence), self._roster.service.recent(now)
        if len(recent) < 2 or sequence.tenant not in recent or not room.num_waiting(sequence.tenant):
            return False
        total_weight = sum(room.share.weight(tenant) for tenant in recent)
        fair = sum(recent.values()) * room.share.weight(sequence.tenant) / total_weight
        return recent[sequence.tenant] > OVER_SHARE * fair

    def _drain_seconds(self, sequence: Sequence, now: float) -> float:
        """When the tenant's present backlog is probably served."""
        backlog = self._roster.room_of(sequence).backlog_tokens(sequence.tenant)
        per_second = self._roster.service.recent(now).get(sequence.tenant, 0.0) / HORIZON_SECONDS
        return min(MAX_DRAIN_SECONDS, max(1.0, backlog / per_second)) if per_second > 0 else 1.0

    # --- time ------------------------------------------------------------------------------------------

    def _least_seconds(self, sequence: Sequence) -> float:
        """What its answer takes at the very least, were it alone."""
        if not self.step_time.is_trained:
            return 0.0
        limits, params = self.limits, sequence.params
        num_decodes = min(params.min_tokens, params.max_tokens) - sequence.num_output_tokens - 1
        return self.step_time.least_seconds(
            sequence.num_uncomputed_tokens - self.kv_cache.num_cached_tokens(sequence),
            max(0, num_decodes),
            min(limits.max_num_batched_tokens, limits.max_num_prefill_tokens, limits.prefill_chunk_size),
        )

    def _patience_ends_at(self, sequence: Sequence) -> float:
        return sequence.arrived_at + self.limits.waiting_timeout_ms / 1000

    def _gives_up_at(self, sequence: Sequence) -> float:
        """When to look at a newcomer again: its patience ends, or its deadline cannot be met from then on."""
        return min(self._patience_ends_at(sequence), sequence.deadline - self._least_seconds(sequence))

    def _expired(self, sequence: Sequence, now: float) -> Outcome | None:
        if sequence.scheduled_at is not None:
            if now >= sequence.deadline:
                return self._end(sequence, EndReason.DEADLINE)
            self._alarms.set(sequence, sequence.deadline)
            return None
        gives_up_at = self._gives_up_at(sequence)
        if now < gives_up_at:  # steps have become quicker, or waiting times longer
            self._alarms.set(sequence, gives_up_at)
            return None
        waited = f"waited {now - sequence.arrived_at:.1f} s, last for {self.wait_reason(sequence).value}"
        if now >= self._patience_ends_at(sequence):
            reason, detail = RefusalReason.WAITING_TIMEOUT, f"no room came free ({waited})"
        else:
            reason = RefusalReason.DEADLINE_INFEASIBLE
            detail = f"the request's time does not suffice any more ({waited})"
        return self._refuse(sequence, Refusal(reason, detail, wait_reason=self.wait_reason(sequence)))

    # --- results ---------------------------------------------------------------------------------------

    def _note_computed(self, sequence: Sequence) -> None:
        """More of a prompt, or a block that became full."""
        computed = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        sequence.num_prompt_tokens_computed = max(sequence.num_prompt_tokens_computed, computed)
        self.kv_cache.commit(sequence)

    def _take_tokens(
        self, sequence: Sequence, token_ids: tuple[int, ...], now: float, outcomes: list[Outcome]
    ) -> None:
        waited_seconds = now - sequence.waiting_for_token_since
        sequence.waiting_for_token_since = now
        is_first = sequence.first_token_at is None
        if is_first:
            sequence.first_token_at = now
        elif waited_seconds > sequence.longest_gap_seconds:
            sequence.longest_gap_seconds = waited_seconds
        kept, reason = sequence.append(token_ids)
        outcomes.append(Sampled(sequence, kept, waited_seconds, is_first))
        if reason is not None:
            self._memory.learn_from(sequence)
            outcomes.append(self._end(sequence, reason))

    def _is_first_step(self, row: PlannedRow) -> bool:
        sequence = self._roster.running[row.sequence_id]
        return sequence.num_output_tokens == 0 and row.start == sequence.num_cached_tokens

    # --- ends ------------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence, reason: EndReason) -> Ended:
        self._forget(sequence, CAUSES[reason])
        return Ended(sequence, reason)

    def _break(self, sequence: Sequence, error: str) -> Broken:
        self._forget(sequence, FreeCause.ERROR)
        return Broken(sequence, error)

    def _refuse(self, sequence: Sequence, refusal: Refusal) -> Refused:
        self._forget(sequence, FreeCause.CANCELLED)
        return Refused(sequence, refusal)

    def _forget(self, sequence: Sequence, cause: FreeCause) -> None:
        """Takes the sequence out of wherever it is and frees its blocks."""
        self._alarms.clear(sequence)
        self._roster.remove(sequence)
        self._memory.give_back(sequence, cause)

    # --- waiting ---------------------------------------------------------------------------------------

    def _lane_reason(self, sequence_class: SequenceClass, lane: Lines[Sequence], tenant: str) -> WaitReason:
        room = self._roster.rooms[sequence_class]
        return self._planner.waits.reason(
            sequence_class,
            is_long=lane is room.long,
            lead=room.share.lead(tenant),
            quantum=self.quantum,
        )

    def _noted(self) -> Iterator[Sequence]:
        """Waiting sequences for whom the latest step noted a reason of their own."""
        for room in self._roster.rooms.values():
            for lane in (room.short, room.long):
                for id in self._planner.waits.of:
                    sequence = lane.find(id)
                    if sequence is not None:
                        yield sequence


def _waiting_ages(line: Iterable[Sequence], now: float, late_seconds: float) -> tuple[float, int]:
    """How long the oldest newcomer of a line has waited, and how many are late."""
    oldest, num_late = 0.0, 0
    for sequence in line:
        if sequence.scheduled_at is not None:
            continue
        age = now - sequence.arrived_at
        oldest = max(oldest, age)
        if age <= late_seconds:
            break  # those behind came later
        num_late += 1
    return oldest, num_late
