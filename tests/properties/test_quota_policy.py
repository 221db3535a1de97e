"""Whatever replicas ask, use, give back and forget: a bucket never lends more than its limit."""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.limits import Counting
from gateway.quotas.policy import (
    Ask,
    Bucket,
    BucketId,
    Granted,
    Return,
    Short,
    exchange,
    refill,
    resize,
    take_back,
    use,
)

ID = BucketId(1)
NUM_REPLICAS = 3


@dataclass
class Replica:
    """What one replica has been lent and who holds it."""

    pool: float = 0.0
    live: list[int] = field(default_factory=list)
    spent: int = 0


@dataclass(frozen=True)
class Admit:
    replica: int
    prompt: int
    cap: int
    floor: int
    wish: int


@dataclass(frozen=True)
class End:
    """The replica's oldest live request ends, having used this share of what it held."""

    replica: int
    share: float


@dataclass(frozen=True)
class Tick:
    """The replica tells what is spent, and gives back this share of what it has free."""

    replica: int
    share: float


@dataclass(frozen=True)
class Wait:
    seconds: float


replicas = st.integers(0, NUM_REPLICAS - 1)
shares = st.floats(0, 1)


@st.composite
def admissions(draw: st.DrawFn) -> Admit:
    cap = draw(st.integers(1, 300))
    return Admit(
        replica=draw(replicas),
        prompt=draw(st.integers(0, 300)),
        cap=cap,
        floor=draw(st.integers(1, cap)),
        wish=draw(st.integers(0, 500)),
    )


events = st.lists(
    admissions()
    | st.builds(End, replicas, shares)
    | st.builds(Tick, replicas, shares)
    | st.builds(Wait, st.floats(0, 60)),
    min_size=1,
    max_size=60,
)


class World:
    """One bucket and the replicas that live on it."""

    def __init__(self, counting: Counting, capacity: int) -> None:
        self.bucket = Bucket(
            id=ID,
            counting=counting,
            capacity=capacity,
            available=capacity,
            outstanding=0,
            pool=0,
            idle_elsewhere=0,
            num_replicas=NUM_REPLICAS,
        )
        self.replicas = [Replica() for _ in range(NUM_REPLICAS)]
        self.num_used = 0
        self.seconds = 0.0

    def admit(self, event: Admit) -> None:
        replica = self.replicas[event.replica]
        ask = Ask(
            ones=(),
            tokens=(ID,),
            prompt_tokens=event.prompt,
            output_cap=event.cap,
            output_floor=event.floor,
        )
        bucket = self._seen_by(event.replica)
        settled = exchange({ID: bucket}, [ask], {ID: float(event.wish)})
        (decision,) = settled.decisions
        within_reach = bucket.pool + max(0.0, bucket.available)
        if isinstance(decision, Short):
            assert within_reach < event.prompt + event.floor
            assert decision.may_come_back == (bucket.idle_elsewhere > 0)
        else:
            assert event.floor <= decision.output_tokens <= event.cap
            replica.live.append(use(ask, decision, ID))
            assert replica.live[-1] <= within_reach
        after = settled.buckets[ID]
        replica.pool = after.pool
        self.bucket = after

    def end(self, event: End) -> None:
        replica = self.replicas[event.replica]
        if replica.live:
            held = replica.live.pop(0)
            used = int(held * event.share)
            replica.spent += used
            replica.pool += held - used
            self.num_used += used

    def tick(self, event: Tick) -> None:
        replica = self.replicas[event.replica]
        given_back = float(int(replica.pool * event.share))
        self.bucket = take_back(self.bucket, Return(spent=replica.spent, given=given_back))
        replica.pool -= given_back
        replica.spent = 0

    def wait(self, event: Wait) -> None:
        self.seconds += event.seconds
        self.bucket = refill(self.bucket, elapsed_seconds=event.seconds)

    def check(self) -> None:
        bucket = self.bucket
        assert bucket.available + bucket.outstanding <= bucket.capacity + 1e-6
        lent = sum(one.pool + sum(one.live) + one.spent for one in self.replicas)
        assert abs(lent - bucket.outstanding) < 1e-6  # nothing leaks, nothing is made
        assert all(one.pool >= 0 for one in self.replicas)
        most = bucket.capacity
        if bucket.counting is Counting.RATE:
            most += bucket.capacity / 60 * self.seconds
        held = sum(sum(one.live) for one in self.replicas)
        assert self.num_used + held <= most + 1e-6

    def _seen_by(self, number: int) -> Bucket:
        idle = sum(one.pool for index, one in enumerate(self.replicas) if index != number)
        return replace(self.bucket, pool=self.replicas[number].pool, idle_elsewhere=idle)


@given(st.sampled_from([Counting.RATE, Counting.WINDOW]), st.integers(0, 2_000), events)
def test_no_order_of_events_lends_or_uses_more_than_the_limit(
    counting: Counting, capacity: int, happened: list[Admit | End | Tick | Wait]
) -> None:
    world = World(counting, capacity)
    for event in happened:
        match event:
            case Admit():
                world.admit(event)
            case End():
                world.end(event)
            case Tick():
                world.tick(event)
            case Wait():
                world.wait(event)
        world.check()


@given(events, st.lists(st.integers(0, 3_000), min_size=1, max_size=3))
def test_what_was_used_stays_used_when_a_limit_changes(
    happened: list[Admit | End | Tick | Wait], capacities: list[int]
) -> None:
    world = World(Counting.WINDOW, 1_000)
    for event in happened:
        if isinstance(event, Admit):
            world.admit(event)
        elif isinstance(event, End):
            world.end(event)
    before = world.bucket.capacity - world.bucket.available
    for capacity in capacities:
        world.bucket = resize(world.bucket, capacity)
        assert world.bucket.capacity - world.bucket.available == before


def test_an_ask_of_several_buckets_takes_of_all_or_of_none() -> None:
    slot = Bucket(
        id=BucketId(1),
        counting=Counting.SLOTS,
        capacity=1,
        available=1,
        outstanding=0,
        pool=0,
        idle_elsewhere=0,
        num_replicas=1,
    )
    empty = Bucket(
        id=BucketId(2),
        counting=Counting.WINDOW,
        capacity=10,
        available=0,
        outstanding=0,
        pool=0,
        idle_elsewhere=0,
        num_replicas=1,
    )
    ask = Ask(ones=(slot.id,), tokens=(empty.id,), prompt_tokens=5, output_cap=5, output_floor=1)
    settled = exchange({slot.id: slot, empty.id: empty}, [ask], {})
    assert settled.buckets == {slot.id: slot, empty.id: empty}
    assert [type(decision) for decision in settled.decisions] == [Short]


def test_a_request_for_what_is_left_is_admitted_by_any_replica() -> None:
    """The last credit is lent to who needs it, not split ahead among all (TensorZero#5623)."""
    bucket = Bucket(
        id=ID,
        counting=Counting.WINDOW,
        capacity=100,
        available=40,
        outstanding=0,
        pool=0,
        idle_elsewhere=0,
        num_replicas=50,
    )
    ask = Ask(ones=(), tokens=(ID,), prompt_tokens=20, output_cap=20, output_floor=20)
    assert list(exchange({ID: bucket}, [ask], {ID: 1_000.0}).decisions) == [Granted(20)]
