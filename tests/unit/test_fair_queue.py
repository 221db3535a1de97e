"""Turns between tenants."""

import time

import pytest

from engine.core.fair_queue import FairQueue
from engine.core.lines import Part


def queue(*items: str) -> FairQueue[str]:
    """Items named by tenant and number: "a1" is tenant a's."""
    filled: FairQueue[str] = FairQueue()
    for item in items:
        filled.push(tenant=item[0], key=item, item=item)
    return filled


def drained(fair: FairQueue[str]) -> list[str]:
    return [fair.pop() for _ in range(len(fair))]


def test_tenants_take_turns_and_keep_their_own_order() -> None:
    assert drained(queue("a1", "a2", "a3", "b1", "b2", "c1")) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_newcomer_waits_one_round_at_most() -> None:
    fair = queue("a1", "a2", "a3")
    fair.pop()
    fair.push(tenant="b", key="b1", item="b1")
    assert drained(fair) == ["a2", "b1", "a3"]


def test_peek_shows_what_pop_takes() -> None:
    fair = queue("a1", "b1")
    assert fair.peek() == "a1"
    assert fair.pop() == "a1"
    assert fair.peek() == "b1"


def test_an_item_taken_out_costs_nobody_a_turn() -> None:
    fair = queue("a1", "a2", "b1")
    assert fair.remove("a1") == "a1"
    assert fair.remove("a1") is None
    assert "a1" not in fair
    assert drained(fair) == ["a2", "b1"]


def test_an_empty_queue_says_so() -> None:
    fair = queue()
    assert fair.peek() is None
    assert len(fair) == 0
    with pytest.raises(LookupError):
        fair.pop()


def test_the_projects_of_a_tenant_take_turns_and_so_do_the_keys_of_a_project() -> None:
    fair: FairQueue[str] = FairQueue()
    for item in ("p-k1", "p-k1", "p-k2", "q-k3", "q-k3", "q-k3"):
        project, key = item.split("-")
        number = len(fair)
        fair.push(tenant="a", key=f"{number}", item=item, within=(Part(project), Part(key)))
    assert drained(fair) == ["p-k1", "q-k3", "p-k2", "q-k3", "p-k1", "q-k3"]


def test_a_key_of_thrice_the_weight_gets_three_for_one() -> None:
    fair: FairQueue[str] = FairQueue()
    for number in range(12):
        for name, weight in (("light", 1.0), ("heavy", 3.0)):
            fair.push(tenant="a", key=f"{name}{number}", item=name, within=(Part("p"), Part(name, weight)))
    assert [fair.pop() for _ in range(12)].count("heavy") == 9


def test_ten_thousand_keys_of_one_tenant_are_found_their_turn_without_looking_at_all() -> None:
    fair: FairQueue[int] = FairQueue()
    begun = time.process_time()
    for number in range(10_000):
        fair.push(tenant="a", key=f"{number}", item=number, within=(Part("p"), Part(f"k{number}")))
    assert drained(fair) == list(range(10_000))
    assert time.process_time() - begun < 5.0, "a look at all for each of them takes a minute"
