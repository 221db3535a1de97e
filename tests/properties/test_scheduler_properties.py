"""Whatever is submitted, cancelled, timed out or short of memory: nothing leaks, repeats or is forgotten."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.core.outcome import Broken, Ended, Outcome, Refused, Sampled
from engine.core.sequence import EndReason, Sequence
from tests.builders.sequences import SimulatedCache, compute, expected_output, scheduler, sequence

TERMINAL = (Ended, Refused, Broken)


class SchedulerMachine(RuleBasedStateMachine):
    """Random commands against a scheduler whose cache is far too small for them."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = scheduler(
            num_blocks=16, block_size=4, max_num_seqs=5, max_model_len=60, waiting_timeout_ms=40_000
        )
        self.cache = SimulatedCache(block_size=4)
        self.now = 0.0
        self.sequences: dict[str, Sequence] = {}
        self.refused: set[str] = set()
        self.ends: Counter[str] = Counter()
        self.outputs: dict[str, list[int]] = {}

    @rule(
        num_prompt_tokens=st.integers(1, 50),
        max_tokens=st.integers(1, 30),
        tenant=st.sampled_from("abc"),
        offline=st.booleans(),
        patience=st.sampled_from([5.0, 60.0, 1e9]),
    )
    def submit(
        self, num_prompt_tokens: int, max_tokens: int, tenant: str, offline: bool, patience: float
    ) -> None:
        new = sequence(
            f"s{len(self.sequences)}",
            tenant=tenant,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max_tokens,
            arrived_at=self.now,
            deadline=self.now + patience,
            offline=offline,
        )
        self.sequences[new.id] = new
        self.outputs[new.id] = []
        if self.engine.submit(new, self.now) is not None:
            self.refused.add(new.id)

    @precondition(lambda self: self.engine.has_work)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(sorted(self.engine.sequences(), key=lambda each: each.id)))
        self.note([self.engine.cancel(victim)])

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.note(self.engine.expire(self.now))

    @rule(num_steps=st.integers(1, 8))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            interactive = [each for each in self.engine.sequences() if each.is_interactive]
            decoding = {each.id for each in interactive if each.is_decoding}
            plan = self.engine.plan_step(self.now)
            if plan is None:
                assert not self.engine.has_work, "something could run and nothing does"
                return
            self.check_budgets(plan, decoding)
            self.cache.run(plan, {id: each.token_ids for id, each in self.sequences.items()})
            self.note(self.engine.apply(plan, compute(plan), self.now))

    def check_budgets(self, plan, decoding: set[str]) -> None:
        limits = self.engine.limits
        assert plan.num_tokens <= limits.max_num_batched_tokens
        assert len(plan.rows) <= limits.max_num_seqs
        assert all(len(row.token_ids) <= limits.prefill_chunk_size for row in plan.rows)
        running = {each.id for each in self.engine.running()}
        planned = {row.sequence_id for row in plan.rows}
        assert decoding & running <= planned, "a decode was left out"

    def note(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Sampled):
                self.outputs[outcome.sequence.id].extend(outcome.token_ids)
            assert self.ends[outcome.sequence.id] == 0, "an outcome after the last one"
            self.ends[outcome.sequence.id] += isinstance(outcome, TERMINAL)
            if isinstance(outcome, Ended) and outcome.reason is EndReason.LENGTH:
                whole = expected_output(outcome.sequence)
                assert self.outputs[outcome.sequence.id] == whole, "tokens lost, repeated or changed"

    @invariant()
    def blocks_are_conserved(self) -> None:
        self.engine.check_integrity()

    @invariant()
    def every_sequence_is_live_or_over(self) -> None:
        live = {each.id for each in self.engine.sequences()}
        over = {id for id, count in self.ends.items() if count} | self.refused
        assert live | over == set(self.sequences)
        assert not live & over

    def teardown(self) -> None:
        for _ in range(5000):
            plan = self.engine.plan_step(self.now)
            if plan is None:
                break
            self.note(self.engine.apply(plan, compute(plan), self.now))
        assert not self.engine.has_work
        assert self.engine.kv_cache.num_used_blocks == 0


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
