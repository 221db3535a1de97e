"""Turns between tenants, between a tenant's projects, and between a project's keys."""

from collections import Counter, defaultdict
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.fair_queue import FairQueue
from engine.core.lines import Part, Path

PROJECT_WEIGHTS = {"blue": 1.0, "red": 2.5}
KEY_WEIGHTS = {"k1": 1.0, "k2": 3.0, "k3": 0.5}
PROJECTS, KEYS = sorted(PROJECT_WEIGHTS), sorted(KEY_WEIGHTS)
COSTS = st.integers(1, 50)
MAX_COST = 50
NUM_POPS = 300


class Queue:
    """A queue whose items are who asked, by name; what each was charged is counted here, too."""

    def __init__(self) -> None:
        self.queue: FairQueue[tuple[str, ...]] = FairQueue()
        self.served: Counter[tuple[str, ...]] = Counter()
        self._costs: dict[str, int] = {}

    def push(self, tenant: str, project: str, key: str, cost: int = 1) -> str:
        name = f"{len(self._costs):05}"
        self._costs[name] = cost
        self.queue.push(
            tenant=tenant,
            key=name,
            item=(tenant, project, key, name),
            cost=cost,
            within=path(project, key),
        )
        return name

    def pop(self) -> tuple[str, ...]:
        """Who was next; each level of it was served."""
        who = self.queue.pop()
        for depth in range(1, 4):
            self.served[who[:depth]] += self._costs[who[3]]
        return who


def path(project: str, key: str) -> Path:
    return Part(project, PROJECT_WEIGHTS.get(project, 1.0)), Part(key, KEY_WEIGHTS.get(key, 1.0))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.sampled_from("abc"), st.sampled_from(PROJECTS), COSTS),
            st.tuples(st.just("remove"), st.integers(0, 30)),
            st.tuples(st.just("pop")),
        ),
        max_size=80,
    ),
    st.data(),
)
def test_whatever_waits_is_served_once_and_each_key_in_its_order(history, data) -> None:
    fair, waiting = Queue(), defaultdict[tuple[str, ...], list[str]](list)
    for event in history:
        match event:
            case ("push", tenant, project, cost):
                key = data.draw(st.sampled_from(KEYS))
                waiting[tenant, project, key].append(fair.push(tenant, project, key, cost))
            case ("remove", index):
                names = [name for line in waiting.values() for name in line]
                if index < len(names):
                    assert fair.queue.remove(names[index]) is not None
                    for line in waiting.values():
                        line[:] = [name for name in line if name != names[index]]
            case ("pop",) if len(fair.queue):
                *who, name = fair.pop()
                assert waiting[tuple(who)].pop(0) == name
        assert len(fair.queue) == sum(map(len, waiting.values()))
    while len(fair.queue):
        *who, name = fair.pop()
        assert waiting[tuple(who)].pop(0) == name
    assert not any(waiting.values())
    assert fair.queue.peek() is None
    assert not list(fair.queue.tenants)


@given(st.lists(COSTS, min_size=6, max_size=6))
def test_what_a_tenant_gets_its_projects_and_keys_share_by_weight(costs) -> None:
    fair = Queue()
    members = [("a", project, key) for project in PROJECTS for key in KEYS]
    cost_of = dict(zip(members, costs, strict=True))
    for member in members * 2:
        fair.push(*member, cost_of[member])
    for _ in range(NUM_POPS):
        who = fair.pop()[:3]
        fair.push(*who, cost_of[who])
        assert_close({each: fair.served["a", each] / PROJECT_WEIGHTS[each] for each in PROJECTS}, 1.0)
        for project in PROJECTS:
            shares = {key: fair.served["a", project, key] / KEY_WEIGHTS[key] for key in KEYS}
            assert_close(shares, min(KEY_WEIGHTS.values()))


def assert_close(shares: dict[str, float], smallest_weight: float) -> None:
    """No two are further apart than the largest item brings one of them forward."""
    for one, other in combinations(shares, 2):
        assert abs(shares[one] - shares[other]) <= MAX_COST / smallest_weight, shares


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 100)), min_size=20, max_size=60), COSTS, COSTS)
def test_a_tenant_that_opens_a_hundred_keys_gets_not_one_turn_more(members, cost_a, cost_b) -> None:
    split, whole = Queue(), Queue()
    for project, key in members:
        split.push("a", f"project{project}", f"key{key}", cost_a)
        whole.push("a", "project", "key", cost_a)
        for queue in (split, whole):
            queue.push("b", "project", "key", cost_b)
    turns = range(2 * len(members))
    assert [split.pop()[0] for _ in turns] == [whole.pop()[0] for _ in turns]


@given(st.integers(1, 40), st.integers(2, 20))
def test_a_key_that_was_idle_has_saved_up_no_turns(num_alone, num_then) -> None:
    fair = Queue()
    for _ in range(num_alone + num_then):
        fair.push("a", "blue", "k1")
    for _ in range(num_alone):
        fair.pop()
    for _ in range(num_then):
        fair.push("a", "blue", "k4")
    first = Counter(fair.pop()[2] for _ in range(num_then))
    assert abs(first["k1"] - first["k4"]) <= 1


@given(st.integers(1, 30))
def test_a_key_that_never_has_two_waiting_gets_no_more_than_its_weight(num_rounds) -> None:
    """It is gone from the queue whenever it is served, and what it was charged is not forgotten."""
    fair = Queue()
    for _ in range(8 * num_rounds):
        fair.push("a", "blue", "k2")
    fair.push("a", "blue", "k1")
    for _ in range(4 * num_rounds):
        if fair.pop()[2] == "k1":
            fair.push("a", "blue", "k1")
    assert fair.served["a", "blue", "k1"] <= num_rounds + 1


def test_a_project_with_nothing_waiting_takes_no_share() -> None:
    fair = Queue()
    fair.push("a", "blue", "k1")
    for _ in range(10):
        fair.push("a", "red", "k1")
    for _ in range(10):
        fair.push("b", "red", "k1")
    assert Counter(fair.pop()[0] for _ in range(12)) == {"a": 6, "b": 6}
