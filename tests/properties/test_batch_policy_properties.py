"""Lines are shared out by what tenants have had: no more than there is room for, fair in the long run."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.policy import QUANTUM, Candidate, share_out
from gateway.tenants.ids import TenantId

positive = st.floats(0.1, 1_000)
candidates = st.lists(
    st.builds(
        Candidate,
        tenant=st.uuids().map(lambda name: TenantId(str(name))),
        served=st.floats(0, 1e6),
        weight=positive,
        tokens_per_item=positive,
    ),
    max_size=6,
    unique_by=lambda one: one.tenant,
)


@given(candidates, st.integers(-5, 500))
def test_all_the_room_is_used_and_no_more(found: list[Candidate], room: int) -> None:
    assert share_out(found, room=room).total() == (max(0, room) if found else 0)


@given(candidates.filter(len), st.integers(1, QUANTUM))
def test_whoever_had_least_is_first(found: list[Candidate], room: int) -> None:
    (tenant,) = share_out(found, room=room)
    least = min(one.served for one in found)
    assert tenant in {one.tenant for one in found if one.served == least}


@given(st.floats(0.2, 5), st.floats(0.2, 5), st.lists(st.integers(1, 64), min_size=200, max_size=200))
def test_in_the_long_run_tenants_get_tokens_by_their_weight(
    light: float, heavy: float, rooms: list[int]
) -> None:
    tenants = [
        Candidate(tenant=TenantId(name), served=0.0, weight=weight, tokens_per_item=tokens)
        for name, weight, tokens in (("light", light, 10.0), ("heavy", heavy, 30.0))
    ]
    claimed: Counter[TenantId] = Counter()
    for room in rooms:
        shares = share_out(tenants, room=room)
        claimed += shares
        tenants = [
            replace(one, served=one.served + shares[one.tenant] * one.tokens_per_item / one.weight)
            for one in tenants
        ]
    by_weight = [claimed[one.tenant] * one.tokens_per_item / one.weight for one in tenants]
    quanta = [QUANTUM * one.tokens_per_item / one.weight for one in tenants]
    assert abs(by_weight[0] - by_weight[1]) <= max(quanta) + 1e-6
