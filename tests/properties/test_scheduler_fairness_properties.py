"""Tenants with more work than there is room for: how far apart their service may drift."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.charging import OUTPUT_TOKEN_COST
from engine.core.lines import Part
from engine.core.sequence import SequenceClass
from engine.core.step import StepPlan
from tests.builders.scheduler_world.referees import Books, Budgets, Charges, Decodes, Watcher
from tests.builders.scheduler_world.world import Law, World, small_limits, world
from tests.builders.sequences import sequence

NUM_WAITING = 4  # requests that a backlogged tenant always has waiting
NUM_STEPS = 80
SHAPES = st.tuples(st.integers(1, 30), st.integers(1, 20))  # prompt and output tokens
LIMITS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(2, 8),
        "max_num_batched_tokens": st.integers(8, 24),
        "max_num_prefill_tokens": st.integers(4, 24),
        "prefill_chunk_size": st.integers(2, 12),
        "long_context_threshold": st.just(100),
    }
)
WEIGHTS = st.sampled_from([1.0, 2.0, 4.0])
INTERACTIVE = SequenceClass.INTERACTIVE


class Backlog:
    """Keeps tenants supplied, each with requests of its own shape and from so many of its keys."""

    def __init__(
        self,
        world: World,
        shapes: dict[str, tuple[int, int]],
        weights: dict[str, float],
        num_keys: dict[str, int],
    ) -> None:
        self._world = world
        self._num_keys = num_keys
        self._shapes = shapes
        self._weights = weights

    def refill(self, tenants: str) -> None:
        for tenant in tenants:
            num_waiting = sum(each.tenant == tenant for each in self._world.waiting)
            for _ in range(NUM_WAITING - num_waiting):
                self._submit(tenant)

    def _submit(self, tenant: str) -> None:
        num_prompt_tokens, max_tokens = self._shapes[tenant]
        new = sequence(
            f"s{len(self._world.sequences):04}",
            tenant=tenant,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max_tokens,
            arrived_at=self._world.now,
            temperature=0.0,
        )
        new.weight = self._weights[tenant]
        number = len(self._world.sequences) % self._num_keys[tenant]
        new.within = Part(f"project{number % 2}"), Part(f"key{number}")
        assert self._world.submit(new) is None


class Reach(Watcher):
    """How far what a tenant has running might at most have brought it: answers, and the rest of prompts."""

    def __init__(self, weights: dict[str, float]) -> None:
        self._weights = weights
        self.of = dict.fromkeys(weights, 0.0)

    def planned(self, world: World, plan: StepPlan | None) -> None:
        chunk = world.scheduler.limits.prefill_chunk_size
        for tenant, weight in self._weights.items():
            running = [each for each in world.running if each.tenant == tenant]
            outputs = sum(each.params.max_tokens - each.num_output_tokens for each in running)
            prompts = sum(max(0, each.num_prompt_tokens - each.num_computed_tokens) for each in running)
            reach = (OUTPUT_TOKEN_COST * outputs + max(chunk, prompts)) / weight
            self.of[tenant] = max(self.of[tenant], reach)


def gap(world: World, one: str, other: str) -> float:
    share = world.scheduler.virtual
    return share(INTERACTIVE, one) - share(INTERACTIVE, other)


@settings(max_examples=20, deadline=None)
@given(
    LIMITS,
    st.tuples(SHAPES, SHAPES, SHAPES),
    st.tuples(WEIGHTS, WEIGHTS, WEIGHTS),
    st.sampled_from([0, 40]),
    st.tuples(*[st.sampled_from([1, 3, 100])] * 3),
)
def test_backlogged_tenants_stay_together_and_idle_ones_save_nothing_up_however_many_keys_they_have(
    limits, shapes, weights, idle_steps, num_keys
) -> None:
    weight_of = dict(zip("abc", weights, strict=True))
    reach = Reach(weight_of)
    referees = (Books(), Budgets(), Decodes(), Charges(), reach)
    tiny = world(*referees, limits=small_limits(**limits), num_blocks=400)
    keys = dict(zip("abc", num_keys, strict=True))
    backlog = Backlog(tiny, dict(zip("abc", shapes, strict=True)), weight_of, keys)
    for count in range(NUM_STEPS):
        present = "ab" if count < idle_steps else "abc"
        backlog.refill(present)
        tiny.step()
        for one in present:
            for other in present:
                bound = tiny.scheduler.quantum + reach.of[one]
                assert gap(tiny, one, other) <= bound, f"{one} is {gap(tiny, one, other)} ahead of {other}"


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.sampled_from([0.05, 0.2, 0.4]), st.booleans())
def test_offline_work_has_its_floor_where_people_leave_seats_but_no_time(
    num_people, share, has_guard
) -> None:
    law = Law(per_step=0.01, per_prefill_token=0.001, per_decode_row=0.002)
    tiny = world(
        Decodes(),
        limits=small_limits(
            max_num_seqs=8,
            max_model_len=500,
            max_output_len=400,
            prefill_chunk_size=8,
            offline_min_share=share,
        ),
        num_blocks=800,
        law=law,
        is_trained=True,
        itl_guard_seconds=0.011 if has_guard else None,
    )
    for index in range(num_people):
        tiny.submit(sequence(f"person{index}", tenant="person", num_prompt_tokens=2, max_tokens=200))
    for index in range(40):
        tiny.submit(sequence(f"offline{index}", tenant="batch", num_prompt_tokens=16, offline=True))
    for _ in range(150):
        tiny.step()
    served = tiny.scheduler.virtual(SequenceClass.OFFLINE, "batch")
    assert served >= 0.8 * share * tiny.scheduler.virtual(INTERACTIVE, "person")
