"""Whatever is submitted, cancelled, limited, broken, late or short of memory: the scheduler's rules hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.sequence import GenerationParams, Sequence, SequenceClass
from tests.builders.scheduler_world.referees import (
    Books,
    Budgets,
    Ceiling,
    Charges,
    Conservation,
    Deadlines,
    Decodes,
    Progress,
    Waits,
    check_books,
    check_emptiness,
)
from tests.builders.scheduler_world.world import STOP_TOKEN, Faults, Law, small_limits, world
from tests.builders.sequences import sequence

TENANTS = "abc"
LAWS = st.sampled_from(
    [
        Law(per_step=0.01, per_prefill_token=0.001, per_decode_row=0.002),
        Law(per_step=0.002, per_prefill_token=0.004, per_decode_row=0.001, per_context_token=0.0001),
        Law(per_step=0.2, per_prefill_token=0.0001, per_decode_row=0.0001),
        Law(
            per_step=0.004,
            per_prefill_token=0.001,
            per_decode_row=0.001,
            per_context_token=0.0002,
            pair_cost=0.5,
        ),
    ]
)
LIMITS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 24),
        "max_num_prefill_tokens": st.integers(1, 24),
        "prefill_chunk_size": st.integers(1, 12),
        "long_context_threshold": st.sampled_from([6, 24, 100]),
        "max_num_long_context_seqs": st.integers(1, 2),
        "kv_cache_utilization_limit": st.sampled_from([1.0, 0.9, 0.6]),
        "offline_kv_utilization_limit": st.sampled_from([0.3, 0.6, 1.0]),
        "offline_min_share": st.sampled_from([0.0, 0.05, 0.3]),
        "max_model_len": st.sampled_from([64, 40]),
        "max_output_len": st.sampled_from([32, 32, 32, 8]),
        "waiting_timeout_ms": st.sampled_from([40_000, 40_000, 500]),
    }
)
PARAMS = st.builds(
    GenerationParams,
    max_tokens=st.integers(1, 24),
    min_tokens=st.sampled_from([0, 0, 1, 6]),
    temperature=st.sampled_from([0.0, 1.0]),
    stop_token_ids=st.sampled_from([frozenset[int](), frozenset({STOP_TOKEN, *range(20, 30)})]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Random commands against a scheduler for which everything is short."""

    @initialize(
        limits=LIMITS,
        num_blocks=st.integers(8, 24),
        law=st.none() | LAWS,
        is_trained=st.booleans(),
        guard=st.none() | st.sampled_from([0.015, 0.05]),
        num_short_answers=st.sampled_from([0, 16]),
    )
    def begin(self, limits, num_blocks, law, is_trained, guard, num_short_answers) -> None:
        self.world = world(
            Books(),
            Budgets(),
            Decodes(),
            Progress(),
            Charges(),
            Conservation(),
            Ceiling(),
            Waits(),
            Deadlines(knows_law=law is not None and is_trained),
            limits=small_limits(**limits),
            num_blocks=num_blocks,
            law=law,
            is_trained=is_trained,
            itl_guard_seconds=guard,
            max_num_waiting=24,
            max_num_waiting_per_tenant=12,
        )
        self.have_short_answers(num_short_answers)

    def have_short_answers(self, count: int) -> None:
        """After them short ones are expected: more are admitted than the cache holds to their ends."""
        for index in range(count):
            self.world.submit(sequence(f"short{index}", tenant="abc"[index % 3], max_tokens=1))
            self.world.step()
        while self.world.live:
            self.world.step()

    @rule(
        num_prompt_tokens=st.integers(1, 12) | st.integers(1, 50),
        num_common_tokens=st.sampled_from([0, 9, 16, 50]),
        params=PARAMS,
        tenant=st.sampled_from(TENANTS),
        weight=st.sampled_from([1.0, 1.0, 3.0]),
        offline=st.booleans(),
        num_shared_tokens=st.sampled_from([0, 0, 12, 50]),
        has_namespace=st.booleans(),
        queued_seconds=st.sampled_from([0.0, 0.0, 0.3]),
        patience=st.sampled_from([1e9, 1e9, 60.0, 1.0, 0.2, 0.05]),
        copies=st.sampled_from([1, 1, 1, 3]),
    )
    def submit(
        self,
        num_prompt_tokens,
        num_common_tokens,
        params,
        tenant,
        weight,
        offline,
        num_shared_tokens,
        has_namespace,
        queued_seconds,
        patience,
        copies,
    ) -> None:
        for _ in range(copies):
            number = len(self.world.sequences)
            common = [1 + index % 50 for index in range(min(num_common_tokens, num_prompt_tokens))]
            own = [60 + (number + index) % 90 for index in range(num_prompt_tokens - len(common))]
            self.world.submit(
                Sequence(
                    id=f"s{number:03}",
                    trace_id="trace",
                    owner=None,
                    tenant=tenant,
                    tenant_name=tenant,
                    sequence_class=SequenceClass.OFFLINE if offline else SequenceClass.INTERACTIVE,
                    token_ids=common + own,
                    num_prompt_tokens=num_prompt_tokens,
                    params=params,
                    arrived_at=self.world.now - queued_seconds,
                    deadline=self.world.now + patience,
                    weight=weight,
                    cache_namespace=tenant.encode() if has_namespace else b"",
                    shared_namespace=b"shared" if num_shared_tokens and tenant != "c" else b"",
                    num_shared_tokens=num_shared_tokens if tenant != "c" else 0,
                )
            )

    @precondition(lambda self: self.world.live)
    @rule(choice=st.integers(0, 99))
    def cancel(self, choice) -> None:
        live = sorted(self.world.live.values(), key=lambda each: each.id)
        self.world.cancel(live[choice % len(live)])

    @rule(limits=LIMITS)
    def set_limits(self, limits) -> None:
        self.world.set_limits(small_limits(**limits))

    @rule(weights=st.dictionaries(st.sampled_from(TENANTS), st.sampled_from([0.5, 1.0, 4.0])))
    def order_weights(self, weights) -> None:
        self.world.scheduler.order_weights(weights)

    @rule(level=st.integers(0, 5))
    def restrict(self, level) -> None:
        self.world.restrict(level)

    @rule(seconds=st.sampled_from([0.05, 1.0, 6.0, 20.0]))
    def time_passes(self, seconds) -> None:
        self.world.pass_time(seconds)

    @rule()
    def the_next_alarm_rings(self) -> None:
        at = self.world.scheduler.next_alarm_at
        if at is not None and at < 1e6:
            self.world.now = max(self.world.now, at)
            self.world.expire()

    @rule(num_steps=st.integers(1, 20))
    def steps(self, num_steps) -> None:
        for _ in range(num_steps):
            self.world.step()

    @rule(
        faults=st.builds(
            Faults,
            failing_rows=st.frozensets(st.integers(0, 4), max_size=2),
            fails_whole=st.booleans(),
            cancelled_in_flight=st.none() | st.integers(0, 4),
        )
    )
    def a_step_goes_wrong(self, faults) -> None:
        self.world.step(faults)

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "world"):
            check_books(self.world)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.restrict(0)
        for _ in range(3000):
            if not self.world.live:
                break
            self.world.step()
        check_emptiness(self.world)


SchedulerMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
