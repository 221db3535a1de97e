"""Turns between tenants."""

import pytest

from engine.core.fair_share import FairQueue


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
