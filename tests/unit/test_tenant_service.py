"""How evenly tenants are served: Jain's index, and what counts as lately."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.service import TenantLoad
from engine.tenant_service import HORIZON_SECONDS, ServiceWindow, jain_index

SHARES = st.floats(min_value=0.001, max_value=1e6)


def row(tenant: str, service: float, *, weight: float = 1.0, running: int = 1) -> TenantLoad:
    return TenantLoad(tenant, tenant, weight, running, 0, service)


@given(SHARES, st.integers(1, 100))
def test_equal_shares_are_even(share: float, count: int) -> None:
    assert jain_index([share] * count) == pytest.approx(1.0)


def test_one_that_has_all_is_the_least_even() -> None:
    assert jain_index([8.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)


@given(st.lists(SHARES, min_size=1, max_size=50))
def test_the_index_lies_between_one_nth_and_1(shares: list[float]) -> None:
    index = jain_index(shares)
    assert index is not None
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9


@pytest.mark.parametrize("shares", [[], [0.0, 0.0]])
def test_nothing_shared_is_neither_even_nor_uneven(shares: list[float]) -> None:
    assert jain_index(shares) is None


def test_a_tenant_that_waits_and_gets_nothing_counts() -> None:
    window = ServiceWindow()
    window.look([row("a", 100.0), row("b", 0.0)], now=1.0)
    assert window.fairness().index == pytest.approx(1 / 2)


def test_a_tenant_without_work_is_left_out() -> None:
    window = ServiceWindow()
    window.look([row("a", 100.0), row("b", 0.0, running=0)], now=1.0)
    assert window.fairness().rates == {"a": 10.0}
    assert window.fairness().index == pytest.approx(1.0)


def test_what_is_longer_ago_is_forgotten() -> None:
    window = ServiceWindow()
    window.look([row("a", 100.0)], now=1.0)
    window.look([row("b", 50.0)], now=1.0 + HORIZON_SECONDS)
    assert window.fairness().rates == {"b": 5.0}


def test_a_count_that_starts_again_is_all_new() -> None:
    window = ServiceWindow()
    window.look([row("a", 100.0)], now=1.0)
    assert window.look([row("a", 30.0)], now=2.0) == {"a": 30.0}


def test_a_tenant_that_comes_back_is_not_counted_twice() -> None:
    window = ServiceWindow()
    window.look([row("a", 100.0)], now=1.0)
    window.look([], now=2.0)
    assert window.look([row("a", 110.0)], now=3.0) == {"a": 10.0}


def test_what_was_given_unseen_over_a_minute_is_not_all_of_the_last_ten_seconds() -> None:
    window = ServiceWindow()
    window.look([row("a", 0.0)], now=0.0)
    assert window.look([row("a", 60.0)], now=60.0) == {"a": 60.0}
    assert window.fairness().rates == {"a": pytest.approx(1.0)}


@given(st.lists(st.tuples(st.floats(0, 3), st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)))))
def test_rates_are_of_the_last_ten_seconds(history: list[tuple[float, dict[str, int]]]) -> None:
    window, now, totals, given_at = ServiceWindow(), 0.0, dict.fromkeys("abc", 0), []
    for pause, amounts in history:
        now += pause
        for tenant, amount in amounts.items():
            totals[tenant] += amount
            given_at.append((now, tenant, amount))
        window.look([row(tenant, total) for tenant, total in totals.items()], now)
        given_at.extend((now, tenant, 0) for tenant in totals)
    recent = [(tenant, amount) for at, tenant, amount in given_at if at > now - HORIZON_SECONDS]
    expected = {
        tenant: sum(amount for each, amount in recent if each == tenant) / HORIZON_SECONDS
        for tenant, _ in recent
    }
    assert window.fairness().rates == pytest.approx(expected)
