"""What must hold in every step, whatever was asked for; one referee per rule.

They count for themselves, from plans and block tables. Where they ask the scheduler, it is for what operators
see, or for limits that they then apply on their own.
"""

import math
from collections import Counter, defaultdict

from engine.core.admission import offline_blocks, usable_blocks
from engine.core.charging import CACHED_TOKEN_COST, PROMPT_TOKEN_COST, sampled_token_cost
from engine.core.outcome import Refusal, RefusalReason
from engine.core.planner import MAX_SKIPS, MAX_TRIES
from engine.core.predictor import StepLoad
from engine.core.sequence import Sequence, SequenceClass
from engine.core.slo import guarded_seconds
from engine.core.step import PlannedRow, StepPlan, prefill_pairs
from engine.core.waiting import MAX_ITEMS_AHEAD
from tests.builders.scheduler_world.world import World

PATIENCE_STEPS = 16  # in so many steps the oldest interactive sequence gets on, whatever else happens
KNOWN_SHARE = 0.4  # of an answer's true time that the scheduler must know it takes


Rows = list[PlannedRow] | tuple[PlannedRow, ...]


class Watcher:
    """A referee that sees nothing: others say what they look at."""

    def before(self, world: World) -> None:
        """A step is about to be planned."""

    def planned(self, world: World, plan: StepPlan | None) -> None:
        """It was planned; nothing is computed yet."""

    def refused(self, world: World, sequence: Sequence, refusal: Refusal) -> None:
        """A sequence is refused, or was until now to be taken."""

    def accepted(self, world: World, sequence: Sequence) -> None:
        """A sequence was taken."""


class Budgets(Watcher):
    """No step computes more than its limits, holds more sequences, or admits into more blocks."""

    def before(self, world: World) -> None:
        self._ran = {each.id for each in world.running}
        self._had_started = {each.id for each in world.live.values() if each.scheduled_at is not None}
        self._blocks = {each.id: len(each.block_table) for each in world.live.values()}

    def planned(self, world: World, plan: StepPlan | None) -> None:
        limits = world.scheduler.limits
        assert len(world.running) <= max(limits.max_num_seqs, len(self._ran)), "too many run"
        self._check_admission(world)
        if plan is None:
            return
        decodes, chunks = plan.rows[: plan.num_decode_rows], plan.rows[plan.num_decode_rows :]
        num_prefill_tokens = sum(len(row.token_ids) for row in chunks)
        assert all(len(row.token_ids) == 1 for row in decodes)
        assert num_prefill_tokens == plan.num_prefill_tokens
        assert sum(row.start for row in decodes) == plan.num_context_tokens
        pairs = (
            position + 1 for row in chunks for position in range(row.start, row.start + len(row.token_ids))
        )
        assert sum(pairs) == plan.num_prefill_pairs
        assert len({row.sequence_id for row in plan.rows}) == len(plan.rows), "two rows of one sequence"
        assert num_prefill_tokens <= limits.max_num_prefill_tokens, "too much prefill"
        assert all(len(row.token_ids) <= limits.prefill_chunk_size for row in chunks), "a chunk is too large"
        # Interactive decodes are never left out, even if the limits were lowered below what runs.
        num_certain = sum(world.live[row.sequence_id].is_interactive for row in decodes)
        if plan.num_tokens > num_certain:
            assert plan.num_tokens <= limits.max_num_batched_tokens, "too many tokens"
            assert plan.num_tokens <= plan.token_budget, "more tokens than the budget that is published"

    def _check_admission(self, world: World) -> None:
        admitted = [each for each in world.running if each.id not in self._had_started]
        if not admitted or len(world.running) == 1 or not self._ran:
            return  # one alone may have what parked ones hold
        cache, limits = world.scheduler.kv_cache, world.scheduler.limits
        grown = sum(
            max(0, len(each.block_table) - self._blocks[each.id])
            for each in world.running
            if each.id in self._ran and (not each.is_interactive or all(a.is_interactive for a in admitted))
        )
        assert cache.num_used_blocks - grown <= usable_blocks(cache, limits), "admitted beyond the limit"


class Decodes(Watcher):
    """Who reads along gets a token in every step, and gives nothing up while offline work has something."""

    def before(self, world: World) -> None:
        self._preempted = {each.id: each.num_preemptions for each in world.live.values()}
        self._blocks = {each.id: len(each.block_table) for each in world.live.values()}
        self._decoding = {each.id for each in world.running if each.is_interactive and each.is_decoding}

    def planned(self, world: World, plan: StepPlan | None) -> None:
        planned = {row.sequence_id for row in plan.rows} if plan is not None else set()
        running = {each.id for each in world.running}
        assert self._decoding & running <= planned, "a decode was left out"
        displaced = [
            each.id
            for each in world.live.values()
            if each.is_interactive and each.num_preemptions > self._preempted[each.id]
        ]
        offline = [id for id in planned if not world.live[id].is_interactive]
        assert not (displaced and offline), f"{displaced} gave way while offline {offline} are computed"
        people = [each for each in world.live.values() if each.is_interactive]
        robbed = any(len(each.block_table) < self._blocks[each.id] for each in people)
        holders = [each.id for each in world.live.values() if each.block_table and not each.is_interactive]
        assert not (robbed and holders), f"people gave blocks up while offline {holders} had some"


class Progress(Watcher):
    """The oldest interactive sequence that ever ran gets on, step after step."""

    def __init__(self) -> None:
        self._oldest: str | None = None
        self._most_computed = 0
        self._num_steps = 0

    def before(self, world: World) -> None:
        """Nothing to see yet."""

    def planned(self, world: World, plan: StepPlan | None) -> None:
        started = [
            each for each in world.live.values() if each.is_interactive and each.scheduled_at is not None
        ]
        oldest = min(started, key=lambda each: (each.arrived_at, each.id), default=None)
        if oldest is None or oldest.id != self._oldest:
            self._oldest = oldest.id if oldest is not None else None
            self._most_computed, self._num_steps = 0, 0
        if oldest is None:
            return
        rows = plan.rows if plan is not None else ()
        end = max((row.start + len(row.token_ids) for row in rows if row.sequence_id == oldest.id), default=0)
        self._num_steps = 0 if end > self._most_computed else self._num_steps + 1
        self._most_computed = max(self._most_computed, end)
        assert self._num_steps <= PATIENCE_STEPS, "the oldest interactive sequence stands still"


class Charges(Watcher):
    """Every computed token is charged once, every cached one a little, and none that is computed again."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}
        self._cached: dict[str, int] = {}
        self._service: defaultdict[str, float] = defaultdict(float)

    def planned(self, world: World, plan: StepPlan | None) -> None:
        for sequence in world.running:
            self._count_cached(sequence)
        num_recomputed = sum(self._count(world, row.sequence_id, row) for row in plan.rows) if plan else 0
        assert num_recomputed == (plan.num_recomputed_tokens if plan else 0), "recomputed tokens miscounted"
        for load in world.scheduler.tenant_loads():
            assert abs(load.service - self._service[load.tenant]) < 1e-6, (
                f"{load.tenant} is charged {load.service} for {self._service[load.tenant]}"
            )
        figures = world.scheduler.figures
        assert figures.num_prefix_hit_tokens == sum(self._cached.values()), "hits count at first admission"
        queried = sum(world.sequences[id].num_prompt_tokens for id in self._cached)
        assert figures.num_prefix_queried_tokens == queried, "lookups count at first admission"

    def _count_cached(self, sequence: Sequence) -> None:
        found = sequence.num_computed_tokens
        first = self._cached.setdefault(sequence.id, found)
        assert sequence.num_cached_tokens == first < sequence.num_prompt_tokens, "cached tokens changed"
        counted = self._counted.get(sequence.id, 0)
        self._service[sequence.tenant] += CACHED_TOKEN_COST * max(0, found - counted)
        self._counted[sequence.id] = max(counted, found)

    def _count(self, world: World, id: str, row) -> int:  # type: ignore[no-untyped-def]
        sequence, counted = world.live[id], self._counted[id]
        end = row.start + len(row.token_ids)
        fresh = max(0, min(end, sequence.num_prompt_tokens) - counted)
        self._service[sequence.tenant] += PROMPT_TOKEN_COST * fresh
        if row.sampling is not None:
            self._service[sequence.tenant] += sampled_token_cost(sequence.params)
        self._counted[id] = max(counted, end)
        return max(0, min(end, counted) - row.start)


class Conservation(Watcher):
    """What could run, runs: no room of a step is left to nobody."""

    def before(self, world: World) -> None:
        self._preempted = {each.id: each.num_preemptions for each in world.live.values()}

    def planned(self, world: World, plan: StepPlan | None) -> None:
        restrictions = world.restrictions
        interactive = [each for each in world.live.values() if each.is_interactive]
        if plan is None:
            held = restrictions.pauses_offline and not interactive
            assert held or not world.live, "there is work and none is held, and nothing is computed"
            return
        room = self._room(world, plan)
        if room <= 0 or self._seconds_left(world, plan) <= 0:
            return
        num_planned = {row.sequence_id: len(row.token_ids) for row in plan.rows}
        for sequence in world.running:
            if sequence.is_interactive:
                wanted = min(sequence.num_uncomputed_tokens, world.scheduler.limits.prefill_chunk_size)
                got = num_planned.get(sequence.id, 0)
                assert got == wanted, f"{sequence.id} gets {got} of {wanted}, and there is room for {room}"
        self._check_waiting(world, room)

    def _room(self, world: World, plan: StepPlan) -> int:
        """Interactive prompt tokens for which limits still left room when offline work had its turn."""
        limits = world.scheduler.limits
        decodes, chunks, offline = self._rows(world, plan)
        budget = min(limits.max_num_prefill_tokens, limits.max_num_batched_tokens - len(decodes))
        num_offline = sum(len(row.token_ids) for row in offline)
        # Its floor: in a step that it is due, offline work goes before the last few tokens of a prompt.
        floor = min(num_offline, self._least_chunk(world))
        return budget - sum(len(row.token_ids) for row in chunks) - floor

    def _seconds_left(self, world: World, plan: StepPlan) -> float:
        """How much longer interactive prompts might make the step, less the dearest token.

        Of offline work its floor counts, and no more: it takes what they leave.
        """
        decodes, chunks, offline = self._rows(world, plan)
        step_time, least = world.scheduler.step_time, self._least_chunk(world)
        if not decodes or world.itl_guard_seconds is None or not step_time.knows_prefill:
            return math.inf
        guard = guarded_seconds(world.itl_guard_seconds, step_time.tail)
        decoding = step_time.seconds(load_of(decodes))
        if decoding > guard:
            return math.inf
        longest = max(guard, decoding + least * step_time.seconds_per_prefill_token)
        together = step_time.seconds(load_of(decodes, chunks))
        floor = step_time.seconds(load_of(offline[:least])) - step_time.seconds(StepLoad())
        most = world.scheduler.limits.max_model_len
        dearest = step_time.seconds(StepLoad(1, 0, 0, most)) - step_time.seconds(StepLoad())
        return longest - together - floor - dearest

    def _rows(self, world: World, plan: StepPlan) -> tuple[Rows, Rows, Rows]:
        """Interactive decodes, interactive chunks, and offline work."""
        interactive = {row.sequence_id for row in plan.rows if world.live[row.sequence_id].is_interactive}
        decodes, chunks = plan.rows[: plan.num_decode_rows], plan.rows[plan.num_decode_rows :]
        return (
            [row for row in decodes if row.sequence_id in interactive],
            [row for row in chunks if row.sequence_id in interactive],
            [row for row in plan.rows if row.sequence_id not in interactive],
        )

    def _least_chunk(self, world: World) -> int:
        return max(1, world.scheduler.limits.prefill_chunk_size // 4)

    def _check_waiting(self, world: World, room: int) -> None:
        waiting = [each for each in world.waiting if each.is_interactive]
        obstructed = [each for each in waiting if not self._plainly_fits(world, each)]
        if len(obstructed) >= MAX_TRIES or any(each.num_skips >= MAX_SKIPS for each in waiting):
            return  # the step looks no further, or keeps room for one that was passed too often
        num_ahead: Counter[str] = Counter(each.tenant for each in obstructed)
        for sequence in waiting:
            reason = world.scheduler.wait_reason(sequence)
            assert sequence in obstructed or num_ahead[sequence.tenant] >= MAX_ITEMS_AHEAD, (
                f"{sequence.id} waits for {reason}, and there is room for {room}"
            )

    def _plainly_fits(self, world: World, sequence: Sequence) -> bool:
        """Whether it could run even if every answer became as long as it may."""
        scheduler = world.scheduler
        cache, limits = scheduler.kv_cache, scheduler.limits
        started = [
            each for each in world.live.values() if each.is_interactive and each.scheduled_at is not None
        ]
        peak = sum(
            cache.blocks_for(each.num_prompt_tokens + each.params.max_tokens) for each in {*started, sequence}
        )
        num_long = sum(each.num_prompt_tokens > limits.long_context_threshold for each in started)
        is_long = sequence.num_prompt_tokens > limits.long_context_threshold and sequence not in started
        return (
            sequence.num_preemptions == self._preempted[sequence.id]
            and scheduler.num_running(SequenceClass.INTERACTIVE) < limits.max_num_seqs
            and peak <= usable_blocks(cache, limits)
            and not (is_long and num_long >= limits.max_num_long_context_seqs)
            and not self._gets_it_from_the_cache_soon(world, sequence)
        )

    def _gets_it_from_the_cache_soon(self, world: World, sequence: Sequence) -> bool:
        computing = world.scheduler.kv_cache.awaited(sequence)
        return computing is not None and computing.is_interactive and computing in world.running


class Ceiling(Watcher):
    """Offline work takes no more of the cache than its part; what people hold anyway costs it nothing."""

    def before(self, world: World) -> None:
        self._held = self._num_blocks(world)

    def planned(self, world: World, plan: StepPlan | None) -> None:
        most = offline_blocks(world.scheduler.kv_cache, world.scheduler.limits)
        held = self._num_blocks(world)
        if sum(bool(each.block_table) for each in world.live.values() if not each.is_interactive) < 2:
            return  # it was taken when it might have so much; alone it may come to its end
        assert held <= max(most, self._held), f"offline work holds {held} of {most} blocks"

    def _num_blocks(self, world: World) -> int:
        held: dict[bool, set[int]] = {True: set(), False: set()}
        for each in world.live.values():
            held[each.is_interactive].update(each.block_table)
        return len(held[False] - held[True])


class Waits(Watcher):
    """Everyone who waits has a reason, and is counted under it."""

    def planned(self, world: World, plan: StepPlan | None) -> None:
        expected = Counter(
            (each.tenant, each.sequence_class, world.scheduler.wait_reason(each)) for each in world.waiting
        )
        assert world.scheduler.waiting_counts() == expected
        for sequence_class in SequenceClass:
            num_waiting = sum(each.sequence_class is sequence_class for each in world.waiting)
            assert world.scheduler.num_waiting(sequence_class) == num_waiting


class Deadlines(Watcher):
    """Nobody is told that there is no time who, alone, would have it; and who has none is told at once."""

    def __init__(self, *, knows_law: bool) -> None:
        self._knows_law = knows_law

    def refused(self, world: World, sequence: Sequence, refusal: Refusal) -> None:
        if refusal.reason is RefusalReason.DEADLINE_INFEASIBLE and world.law is not None:
            needed, left = alone_seconds(world, sequence), sequence.deadline - world.now
            assert left < needed, f"refused with {left} s left for {needed} s of work"
        if refusal.reason is RefusalReason.WAITING_TIMEOUT:
            assert refusal.wait_reason is not None, "waited for nothing"

    def accepted(self, world: World, sequence: Sequence) -> None:
        left = sequence.deadline - world.now
        assert left > 0, "taken after its deadline"
        if self._knows_law:
            needed = alone_seconds(world, sequence)
            assert left > KNOWN_SHARE * needed, f"taken with {left} s left for {needed} s of work"


def load_of(decodes: Rows, chunks: Rows = ()) -> StepLoad:
    """What such rows amount to."""
    return StepLoad(
        sum(len(row.token_ids) for row in chunks),
        len(decodes),
        sum(row.start for row in decodes),
        sum(prefill_pairs(row.start, len(row.token_ids)) for row in chunks),
    )


def alone_seconds(world: World, sequence: Sequence) -> float:
    """The least time in which its answer can come, were it alone: to its last prompt token, then decodes."""
    assert world.law is not None
    limits, cache = world.scheduler.limits, world.scheduler.kv_cache
    position = sequence.num_computed_tokens + cache.num_cached_tokens(sequence)
    most = min(limits.max_num_batched_tokens, limits.max_num_prefill_tokens, limits.prefill_chunk_size)
    seconds = 0.0
    while position < sequence.num_prompt_tokens:
        num_tokens = min(most, sequence.num_prompt_tokens - position)
        pairs = prefill_pairs(position, num_tokens)
        seconds += world.law.seconds(StepLoad(num_tokens, 0, 0, pairs))
        position += num_tokens
    for _ in range(min(sequence.params.min_tokens, sequence.params.max_tokens) - 1):
        seconds += world.law.seconds(StepLoad(0, 1, position))
        position += 1
    return seconds


class Books(Watcher):
    """Blocks, references and places add up."""

    def planned(self, world: World, plan: StepPlan | None) -> None:
        check_books(world)


def check_books(world: World) -> None:
    """Raises AssertionError if a block, a reference or a sequence is lost or counted twice."""
    scheduler = world.scheduler
    scheduler.check_integrity()
    cache = scheduler.kv_cache
    held = {block for each in world.live.values() for block in each.block_table}
    assert cache.num_used_blocks == len(held), "used blocks are not those of the tables"
    assert cache.num_used_blocks + cache.num_free_blocks == cache.num_blocks
    assert cache.num_cached_blocks <= cache.num_free_blocks
    assert {each.id for each in scheduler.sequences()} == set(world.live), "a sequence is lost"
    assert set(world.live) | set(world.ends) | set(world.refusals) == set(world.sequences)


def check_emptiness(world: World) -> None:
    """Raises AssertionError if anything of what is over is still known."""
    scheduler = world.scheduler
    check_books(world)
    roster, planner = scheduler._roster, scheduler._planner
    assert not scheduler.has_work
    assert scheduler.kv_cache.num_used_blocks == 0
    assert not roster.running
    assert not roster.parked
    assert not +roster.num_running
    assert not scheduler._alarms._set_at
    assert not scheduler.waiting_counts()
    assert not scheduler.tenant_loads()
    assert not list(scheduler.kv_cache._prefixes.pending())
    for room in roster.rooms.values():
        assert room.share.first() is None
        assert not list(room.short.tenants)
        assert not list(room.long.tenants)
    assert planner.plan(0, world.now).is_empty
