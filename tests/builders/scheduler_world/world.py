"""Drives a scheduler as the engine's loop does, with a hashing model and a clock; knows no rules."""

from binascii import crc32
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.core import admission
from engine.core.guardrails import Restrictions
from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.outcome import Broken, Ended, Outcome, Refusal, Refused, Sampled
from engine.core.predictor import StepLoad
from engine.core.scheduler import Scheduler
from engine.core.sequence import GenerationParams, Sequence
from engine.core.step import StepPlan, StepResult
from tests.builders.sequences import VOCAB_SIZE, SimulatedCache

STEP_SECONDS = 0.01  # of a world without a law
STOP_TOKEN = 7


@dataclass(frozen=True, kw_only=True)
class Law:
    """How long steps take. No noise: what the scheduler learns from it is true."""

    per_step: float
    per_prefill_token: float
    per_decode_row: float
    per_context_token: float = 0.0
    pair_cost: float = 0.0
    """Of a prefill pair, in context tokens; the scheduler is told of it."""

    def seconds(self, load: StepLoad) -> float:
        """The duration of a step."""
        return (
            self.per_step
            + self.per_prefill_token * load.num_prefill_tokens
            + self.per_decode_row * load.num_decode_rows
            + self.per_context_token * (load.num_context_tokens + self.pair_cost * load.num_prefill_pairs)
        )

    def teach(self, scheduler: Scheduler) -> None:
        """Lets the scheduler see steps of every kind, as if it had run for a while."""
        for index in range(48):
            load = StepLoad(1 + index * 7 % 13, index * 5 % 4, index * 11 % 61, index * 17 % 97)
            plan = StepPlan(
                step_id=0,
                rows=(),
                num_prefill_tokens=load.num_prefill_tokens,
                num_decode_rows=load.num_decode_rows,
                num_context_tokens=load.num_context_tokens,
                num_prefill_pairs=load.num_prefill_pairs,
            )
            scheduler.observe(plan, self.seconds(load))


class Referee(Protocol):
    """Watches a world. Raises AssertionError when a rule is broken."""

    def before(self, world: "World") -> None:
        """A step is about to be planned."""

    def planned(self, world: "World", plan: StepPlan | None) -> None:
        """It was planned; nothing is computed yet."""

    def accepted(self, world: "World", sequence: Sequence) -> None:
        """A sequence was taken."""

    def refused(self, world: "World", sequence: Sequence, refusal: Refusal) -> None:
        """A sequence was not taken, or gave up waiting."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong in one step: rows (by index, modulo) that fail alone, or the step as a whole."""

    failing_rows: frozenset[int] = frozenset()
    fails_whole: bool = False
    cancelled_in_flight: int | None = None  # the row whose sequence is cancelled while it is computed


@dataclass
class World:
    """One scheduler, what was submitted to it and what came of it."""

    scheduler: Scheduler
    referees: tuple[Referee, ...]
    law: Law | None = None
    itl_guard_seconds: float | None = None
    restrictions: Restrictions = field(default_factory=lambda: Restrictions(level=0))
    now: float = 0.0
    sequences: dict[str, Sequence] = field(default_factory=dict)
    live: dict[str, Sequence] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    ends: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._cache = SimulatedCache(self.scheduler.kv_cache.block_size)

    # --- commands --------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> Refusal | None:
        """Hands a sequence in."""
        self.sequences[sequence.id] = sequence
        refusal = self.scheduler.submit(sequence, self.now)
        if refusal is None:
            self.live[sequence.id] = sequence
            self.outputs[sequence.id] = []
        else:
            self.refusals[sequence.id] = refusal
        for referee in self.referees:
            if refusal is None:
                referee.accepted(self, sequence)
            else:
                referee.refused(self, sequence, refusal)
        return refusal

    def cancel(self, sequence: Sequence) -> None:
        """Ends a live sequence; what it alone held is free at once."""
        cache = self.scheduler.kv_cache
        others = {block for each in self.live.values() if each is not sequence for block in each.block_table}
        alone = set(sequence.block_table) - others
        num_free = cache.num_free_blocks
        self.note([self.scheduler.cancel(sequence)])
        assert sequence.id not in self.live, "what is cancelled is over"
        assert cache.num_free_blocks == num_free + len(alone), "a cancelled sequence's blocks are not free"

    def set_limits(self, limits: Limits) -> None:
        """Changes the limits as an operator does."""
        self.note(self.scheduler.set_limits(limits))
        for each in self.waiting:
            refusal = admission.refusal(
                each,
                limits=self.scheduler.limits,
                kv_cache=self.scheduler.kv_cache,
                vocab_size=VOCAB_SIZE,
            )
            assert refusal is None or each.scheduled_at is not None, f"{each.id} waits, and can never run"

    def restrict(self, level: int) -> None:
        """Puts the guardrails on a rung."""
        self.restrictions = Restrictions(level=level)
        self.scheduler.restrict(self.restrictions)

    def expire(self) -> None:
        """Lets time limits be noticed."""
        self.note(self.scheduler.expire(self.now))

    def pass_time(self, seconds: float) -> None:
        """Nothing happens for a while, then time limits are noticed."""
        self.now += seconds
        self.expire()

    # --- the step --------------------------------------------------------------------------------------

    def step(self, faults: Faults = Faults()) -> StepPlan | None:  # frozen
        """One round of the loop, but for commands."""
        self.expire()
        for referee in self.referees:
            referee.before(self)
        plan = self.scheduler.plan_step(self.now)
        for referee in self.referees:
            referee.planned(self, plan)
        if plan is None:
            self.now += STEP_SECONDS
        else:
            self._compute(plan, faults)
        return plan

    def _compute(self, plan: StepPlan, faults: Faults) -> None:
        failed: set[str] = set()
        if faults.fails_whole:  # as the loop does: once more, without the newest
            failed = self.scheduler.newest(plan)
            plan = plan.without(failed)
        result = self._result(plan, faults)
        load = StepLoad(
            plan.num_prefill_tokens, plan.num_decode_rows, plan.num_context_tokens, plan.num_prefill_pairs
        )
        seconds = self.law.seconds(load) if self.law is not None else STEP_SECONDS
        self.now += seconds
        if self.law is not None and plan.rows:
            self.scheduler.observe(plan, seconds)
        if faults.cancelled_in_flight is not None and plan.rows:
            row = plan.rows[faults.cancelled_in_flight % len(plan.rows)]
            self.cancel(self.live[row.sequence_id])
        self.note(self.scheduler.apply(plan, result, self.now))
        self.note(self.scheduler.fail(sorted(failed), "the step failed"))

    def _result(self, plan: StepPlan, faults: Faults) -> StepResult:
        seen = self._cache.run(plan, self.sequences)
        failing = {
            plan.rows[index % len(plan.rows)].sequence_id for index in faults.failing_rows if plan.rows
        }
        sampled = {
            row.sequence_id: (next_token(seen[row.sequence_id], row.sampling.banned_token_ids),)
            for row in plan.rows
            if row.sampling is not None and row.sequence_id not in failing
        }
        return StepResult(step_id=plan.step_id, sampled=sampled, errors={each: "broken" for each in failing})

    # --- outcomes --------------------------------------------------------------------------------------

    def note(self, outcomes: Iterable[Outcome]) -> None:
        """Whatever was taken has one end, no outcome after it, and the text that it would have alone."""
        for outcome in outcomes:
            sequence = outcome.sequence
            assert sequence.id in self.live, f"{outcome} of a sequence that is over"
            if isinstance(outcome, Sampled):
                self.outputs[sequence.id].extend(outcome.token_ids)
                continue
            assert isinstance(outcome, Ended | Refused | Broken)
            self.ends[sequence.id] = outcome
            del self.live[sequence.id]
            self._check_end(outcome)

    def _check_end(self, outcome: Ended | Refused | Broken) -> None:
        sequence, output = outcome.sequence, self.outputs[outcome.sequence.id]
        assert output == sequence.token_ids[sequence.num_prompt_tokens :], "tokens are lost or repeated"
        whole = undisturbed(sequence.token_ids[: sequence.num_prompt_tokens], sequence.params)
        assert output == whole[: len(output)], "the text is not what the sequence alone would get"
        if isinstance(outcome, Ended) and outcome.reason.value in ("stop", "length"):
            assert output == whole, "the text ends too early"
        if isinstance(outcome, Refused):
            assert sequence.scheduled_at is None, "refused although it ran"
            for referee in self.referees:
                referee.refused(self, sequence, outcome.refusal)

    # --- views -----------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Sequence]:
        """Who runs."""
        return list(self.scheduler.running())

    @property
    def waiting(self) -> list[Sequence]:
        """Who does not."""
        running = {each.id for each in self.scheduler.running()}
        return [each for each in self.live.values() if each.id not in running]


def next_token(context: list[int], banned: tuple[int, ...]) -> int:
    """A hash of the whole context: whoever sees another text, or a stale one, says something else."""
    token_id = crc32(bytes(context)) % VOCAB_SIZE
    while token_id in banned:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def undisturbed(prompt: list[int], params: GenerationParams) -> list[int]:
    """The answer that a sequence gets when nothing else is there."""
    context = list(prompt)
    for count in range(params.max_tokens):
        banned = tuple(sorted(params.stop_token_ids)) if count < params.min_tokens else ()
        context.append(next_token(context, banned))
        if context[-1] in params.stop_token_ids:
            break
    return context[len(prompt) :]


def small_limits(**changes: object) -> Limits:
    """Limits at which everything is short."""
    limits = Limits(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_num_prefill_tokens=12,
        max_model_len=64,
        max_output_len=32,
        prefill_chunk_size=8,
        long_context_threshold=24,
        max_num_long_context_seqs=1,
        kv_cache_utilization_limit=0.9,
        waiting_timeout_ms=40_000,
    )
    return replace(limits, **changes)  # type: ignore[arg-type]


def world(
    *referees: Referee,
    limits: Limits,
    num_blocks: int = 16,
    block_size: int = 4,
    law: Law | None = None,
    is_trained: bool = False,
    itl_guard_seconds: float | None = None,
    **settings: int,
) -> World:
    """A world at its beginning; with `is_trained` the scheduler knows the law already."""
    scheduler = Scheduler(
        limits=limits,
        kv_cache=KvCache(num_blocks=num_blocks, block_size=block_size),
        vocab_size=VOCAB_SIZE,
        itl_guard_seconds=itl_guard_seconds,
        prefill_pair_cost=law.pair_cost if law is not None else 0.0,
        **settings,
    )
    if law is not None and is_trained:
        law.teach(scheduler)
    return World(scheduler, referees, law, itl_guard_seconds)
