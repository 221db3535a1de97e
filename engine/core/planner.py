"""Plans one step: decodes, then interactive prompts in fair order, then offline work in what is left.

Decides who runs; ends nobody. Read `plan` first.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from engine.core import admission
from engine.core.draft import StepDraft
from engine.core.figures import Figures
from engine.core.giving_way import GivingWay, is_long
from engine.core.limits import Limits
from engine.core.lines import Lines
from engine.core.memory import Memory
from engine.core.predictor import StepTimeModel
from engine.core.preemption import oldest_interactive, victim
from engine.core.restraint import Restraint
from engine.core.roster import Roster
from engine.core.seats import Seats
from engine.core.sequence import Sequence, SequenceClass, WaitReason
from engine.core.slack import OfflineFloor, Slack
from engine.core.slo import guarded_seconds
from engine.core.waiting import Turns, WaitingRoom
from engine.core.waits import Waits

MAX_SKIPS = 16  # so often may others be admitted past a sequence that does not fit; then room is kept for it
MAX_TRIES = 8  # sequences found not to fit before a step looks no further
LONG_LANE_EVERY = 8  # steps after which the oldest long prompt moves on, however much its tenant has had
LONG_LANE_PART = 4  # a quarter of a step's prefill is the long lane's, if it wants it
INTERACTIVE, OFFLINE = SequenceClass.INTERACTIVE, SequenceClass.OFFLINE


@dataclass(frozen=True)
class Running:
    """Interactive sequences that run: those that decode, and those whose known text is not computed yet.

    `outgrown` are of those that decode: they need a block for their newest token.
    """

    decoding: list[Sequence]
    outgrown: list[Sequence]
    begun: list[Sequence]


class Planner:
    """Fills step after step from the roster."""

    def __init__(
        self,
        *,
        roster: Roster,
        memory: Memory,
        restraint: Restraint,
        step_time: StepTimeModel,
        figures: Figures,
        itl_guard_seconds: float | None,
    ) -> None:
        """`itl_guard_seconds`: no prefill makes a step predictably longer while somebody reads along."""
        self.waits = Waits()
        self._roster = roster
        self._memory = memory
        self._restraint = restraint
        self._step_time = step_time
        self._figures = figures
        self._itl_guard_seconds = itl_guard_seconds
        self._slack = Slack()
        self._floor = OfflineFloor()
        self._long_lane: Sequence | None = None
        self._draft = StepDraft(restraint.limits, step_time)
        self._at_start = Running([], [], [])
        self._seats = Seats(roster, restraint)
        self._way = GivingWay(roster=roster, memory=memory, restraint=restraint, figures=figures)
        self._step_id = 0
        self._now = 0.0

    def plan(self, step_id: int, now: float) -> StepDraft:
        """The next step; empty when nothing can be computed.

        1. Interactive sequences that decode get their token; no prefill ever takes its place.
        2. Interactive prompts, while the step stays within its budgets and its time: short ones beside one
           long one; those begun, then new ones in fair order.
        3. Offline work, in what is left.
        """
        self._step_id, self._now = step_id, now
        self.waits = Waits()
        self._way.parked_now.clear()
        self._memory.begin_step()
        self._draft = draft = StepDraft(self._limits, self._step_time)
        self._way.vacate_seats()
        self._take_up_the_oldest()
        self._decode_interactive()
        draft.num_kept_tokens = num_kept = self._tokens_due_to_offline()
        self._prefill_interactive()
        draft.num_kept_tokens = 0
        if not draft.is_empty:
            self._slack.note(self._step_time.seconds(draft.load), now)
        with draft.own_hold():
            self._fill_with_offline()
        if num_kept:  # offline work could not use all of it: nothing of it fits, say
            self._share_what_is_left()
        return draft

    @property
    def somebody_gave_way(self) -> bool:
        """Whether a sequence stopped running while the latest step was planned."""
        return bool(self._way.parked_now)

    @property
    def quantum(self) -> int:
        """How far behind its turn, in charged tokens, a tenant may stay for the sake of cached prefixes."""
        return self._limits.prefill_chunk_size

    @property
    def _limits(self) -> Limits:
        return self._restraint.limits

    @property
    def _least_chunk(self) -> int:
        return max(1, self._limits.prefill_chunk_size // LONG_LANE_PART)

    # --- interactive -----------------------------------------------------------------------------------

    def _decode_interactive(self) -> None:
        running = self._look_at_running()
        for sequence in running.outgrown:
            if sequence.id in self._roster.running and not self._memory.cache.grow(sequence):
                self._way.make_room_for_growth(sequence)
        decoding = self._look_at_running().decoding if self._way.parked_now else running.decoding
        self._draft.add_decodes(decoding)
        self._earn(self._roster.charge_decodes(decoding, self._now))
        longest = self._longest_step_seconds()
        if decoding and longest is not None:
            self._draft.keep_within(longest, at_least=self._least_chunk)

    def _longest_step_seconds(self) -> float | None:
        """How long interactive prompts may make this step: the guard, and beside offline work the usual tail.

        Offline work makes common steps longer, so that more tokens meet a long one; these get no longer,
        then.
        """
        beside = self._slack.longest_step_seconds() if self._roster.num_running[OFFLINE] else None
        bounds = (self._guard_seconds, beside)
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def _guard_seconds(self) -> float | None:
        if self._itl_guard_seconds is None:
            return None
        return guarded_seconds(self._itl_guard_seconds, self._step_time.tail)

    def _prefill_interactive(self) -> None:
        """Chunk by chunk in fair order; a part of the budget is for one long prompt, whoever's turn it is.

        Within a tenant short prompts go before long ones. So the long lane is what keeps these moving, and a
        long prompt delays others by no more than what its tenant is due.
        """
        begun = self._in_fair_order(self._at_start.begun)
        long = [each for each in begun if self.is_long(each)]
        room = self._roster.rooms[INTERACTIVE]
        self._long_lane = self._next_in_long_lane(long)
        kept = self._long_lane_part(room)
        for sequence in begun:
            if sequence not in long:
                self._add_chunk(sequence, reserve=kept)
        if self._long_lane is None and self._is_long_lanes_turn():
            self._let_into_long_lane(kept)
        others = [each for each in long if each is not self._long_lane]
        self._admit(INTERACTIVE, room.short, room.long, begun=others, reserve=kept)
        if self._long_lane is None:
            self._let_into_long_lane(kept)
        else:
            self._add_chunk(self._long_lane)
        if kept:  # long prompts did not take what was kept for them
            self._share_what_is_left()

    def _share_what_is_left(self) -> None:
        """Gives interactive prompts, begun or new, the tokens that were kept for who did not take them."""
        if self._draft.prefill_room <= 0:
            return
        for sequence in self._in_fair_order(self._look_at_running().begun):
            self._add_chunk(sequence)
        room = self._roster.rooms[INTERACTIVE]
        self._admit(INTERACTIVE, room.short, room.long)

    def _let_into_long_lane(self, num_tokens: int) -> None:
        room = self._roster.rooms[INTERACTIVE].long
        newcomers = self._admit(INTERACTIVE, room, reserve=self._draft.prefill_room - num_tokens)
        self._long_lane = next(iter(newcomers), None)

    def _is_long_lanes_turn(self) -> bool:
        """Whether the long lane goes first in this step, before those whose turn it is."""
        return self._step_id % LONG_LANE_EVERY == 0

    def _next_in_long_lane(self, long: list[Sequence]) -> Sequence | None:
        """It stays with one prompt until that is computed, unless another tenant's turn is long overdue."""
        if not long:
            return None
        if self._is_long_lanes_turn():
            return min(long, key=lambda sequence: (sequence.arrived_at, sequence.id))
        first, current = long[0], self._long_lane
        if current is None or current not in long:
            return first
        is_far_ahead = self._roster.virtual(current) > self._roster.virtual(first) + self.quantum
        return first if is_far_ahead else current

    def _long_lane_part(self, room: WaitingRoom) -> int:
        """Prefill tokens that others leave to the long lane in this step: at most half of them.

        None for a tenant that is far ahead of others; but in every so many steps a token at least, and be it
        the only one, for a prompt that was begun.
        """
        left, is_its_turn = self._draft.prefill_room, self._is_long_lanes_turn()
        most = max(int(is_its_turn), min(max(self._least_chunk, left // LONG_LANE_PART), left // 2))
        lane = self._long_lane
        if lane is None:
            leads = (room.share.lead(tenant) for tenant in room.long.tenants)
            return most if min(leads, default=math.inf) <= self.quantum else 0
        if room.share.lead(lane.tenant) > self.quantum:
            most = min(most, self._least_chunk) if is_its_turn else 0
        return min(most, lane.num_uncomputed_tokens)

    # --- offline ---------------------------------------------------------------------------------------

    def _fill_with_offline(self) -> None:
        room = self._roster.rooms[OFFLINE]
        running = [each for each in self._roster.running_offline() if not each.is_unpaid]
        if not running and not room:
            return
        if self._restraint.restrictions.pauses_offline:
            self.waits.fronts[OFFLINE] = WaitReason.CLASS_HOLD
            return
        is_due = self._is_offline_due()
        at_least = self._least_chunk if is_due else int(self._draft.is_empty)  # it goes on in any case
        seconds = self._offline_step_seconds()
        if self._decode_offline(running, seconds, at_least=at_least):
            if seconds is not None:
                self._draft.stop_at(seconds, at_least=at_least)
            self._prefill_offline()
        self.waits.fronts.setdefault(OFFLINE, WaitReason.CLASS_HOLD)

    def _is_offline_due(self) -> bool:
        """Whether offline work has had less than its floor, and is not held back."""
        has_work = self._roster.num_running[OFFLINE] or self._roster.rooms[OFFLINE]
        is_held = self._restraint.restrictions.pauses_offline
        return bool(has_work) and not is_held and self._floor.is_due(self._least_chunk)

    def _tokens_due_to_offline(self) -> int:
        """Prefill tokens that interactive prompts leave to offline work whose floor is due."""
        return min(self._least_chunk, self._draft.prefill_room // 2) if self._is_offline_due() else 0

    def _offline_step_seconds(self) -> float | None:
        """How long offline work may make this step; None when nobody notices, or nothing can be foretold."""
        if not self._step_time.is_trained:
            return None
        slack = self._slack.usual_step_seconds(self._now)
        if slack is not None and self._draft.is_empty:
            # Nobody reads along, and whoever comes waits for it no longer than for a long step of people's.
            slack = max(slack, self._slack.longest_step_seconds() or 0.0)
        bounds = (slack, self._guard_seconds)
        return min((bound for bound in bounds if bound is not None), default=None)

    def _decode_offline(self, running: list[Sequence], seconds: float | None, *, at_least: int) -> bool:
        """Gives a token to as many as there is time for; whether that was everybody."""
        decoding = self._in_fair_order(each for each in running if each.is_decoding)
        most = self._draft.decode_room
        if seconds is not None:
            left = seconds - self._step_time.seconds(self._draft.load)
            costs = (self._step_time.decode_row_seconds(each.num_computed_tokens) for each in decoding)
            in_time = sum(end <= left for end in itertools.accumulate(costs))
            most = min(most, max(at_least, in_time))
        for sequence in decoding[:most]:
            if sequence.id in self._roster.running and not self._way.grow_offline(sequence):
                self._way.park(sequence)
        planned = [sequence for sequence in decoding[:most] if sequence.id in self._roster.running]
        self._draft.add_decodes(planned)
        self._spend(self._roster.charge_decodes(planned, self._now))
        return len(decoding) <= most

    def _prefill_offline(self) -> None:
        room = self._roster.rooms[OFFLINE]
        begun = (each for each in self._roster.running_offline() if not each.is_decoding)
        for sequence in self._in_fair_order(begun):
            self._add_chunk(sequence)
        self._admit(OFFLINE, room.short, room.long)

    # --- admission -------------------------------------------------------------------------------------

    def _admit(
        self,
        sequence_class: SequenceClass,
        *lanes: Lines[Sequence],
        begun: Iterable[Sequence] = (),
        reserve: int = 0,
    ) -> list[Sequence]:
        """Gives chunks in fair order to those `begun` and to newcomers, while there is room; returns these.

        One that does not fit is skipped, a bounded number of times; then nobody else gets the room it waits
        for.
        """
        going_on, tenants = list(begun), {tenant for lane in lanes for tenant in lane.tenants}
        if self._draft.prefill_room <= reserve or not (going_on or tenants):
            return []
        may_sit = self._open_seats(sequence_class, tenants)
        if tenants and not may_sit:
            self.waits.fronts[sequence_class] = WaitReason.MAX_NUM_SEQS
        turns = Turns(lanes, may_sit, self._roster.rooms[sequence_class].share, quantum=self.quantum)
        skipped: list[Sequence] = []
        let_in: list[Sequence] = []
        while self._draft.prefill_room > reserve and len(skipped) < MAX_TRIES:
            candidates = turns.candidates()
            if going_on and not (candidates and self._is_before(candidates[0], going_on[0])):
                self._add_chunk(going_on.pop(0), reserve=reserve)
                continue
            if not candidates:
                return let_in
            chosen = self._preferred(candidates)
            obstacle = self._obstacle(chosen)
            if obstacle is None and not self._way.make_room_for_newcomer(chosen):
                obstacle = WaitReason.KV_BLOCKS
            if obstacle is None:
                self._start(chosen)
                self._add_chunk(chosen, reserve=reserve)
                turns.was_taken(chosen)
                let_in.append(chosen)
                for sequence in skipped:
                    sequence.num_skips += 1
                continue
            if obstacle in (WaitReason.MAX_NUM_SEQS, WaitReason.CLASS_HOLD):
                self.waits.fronts[sequence_class] = obstacle
                turns.close()
                continue
            self.waits.of[chosen.id] = obstacle
            turns.set_aside(chosen)
            if obstacle is WaitReason.KV_BLOCKS and not self._is_awaiting(chosen):
                skipped.append(chosen)
                if chosen.num_skips >= MAX_SKIPS:
                    turns.close()
        reason = WaitReason.KV_BLOCKS if skipped else WaitReason.TOKEN_BUDGET
        self.waits.fronts.setdefault(sequence_class, reason)
        return let_in

    def _is_before(self, newcomer: Sequence, begun: Sequence) -> bool:
        """Whether a newcomer comes before a long prompt that was begun; among equals a short one does."""
        new, old = self._roster.virtual(newcomer), self._roster.virtual(begun)
        return new < old or (new == old and not self.is_long(newcomer))

    def _preferred(self, candidates: list[Sequence]) -> Sequence:
        """Of those within a quantum: the longest cached prefix first, then who has least waiting, then in
        turn.

        So a tenant that now and then sends a few requests at once is not made to wait behind a flood. A
        tenant's own head is passed a bounded number of times.
        """
        if len(candidates) == 1:
            return candidates[0]
        room, cache = self._roster.room_of(candidates[0]), self._memory.cache
        chosen = max(  # the first of equals
            candidates, key=lambda each: (cache.num_cached_tokens(each), -room.num_waiting(each.tenant))
        )
        head = next(each for each in candidates if each.tenant == chosen.tenant)
        if chosen is not head:
            head.num_passes += 1
        return head if head.num_passes > MAX_SKIPS else chosen

    def _obstacle(self, sequence: Sequence) -> WaitReason | None:
        """What keeps a sequence from running now."""
        if not self._open_seats(sequence.sequence_class, {sequence.tenant}):
            return WaitReason.MAX_NUM_SEQS
        if sequence.id in self._way.parked_now:
            return WaitReason.KV_BLOCKS  # it has only just given way
        if self._is_awaiting(sequence):
            return WaitReason.KV_BLOCKS
        if sequence.scheduled_at is None and not self._may_be_long(sequence):
            return WaitReason.LONG_LANE
        if not self._roster.running:
            return None  # alone it may have whatever is parked; that it fits at all was asked at submission
        if not sequence.is_interactive and not self._is_below_offline_ceiling(sequence):
            return WaitReason.CLASS_HOLD
        fits = self._memory.fits(
            sequence,
            self._competitors,
            usable_blocks=admission.usable_blocks(self._memory.cache, self._limits),
            reclaimable_blocks=self._way.num_offline_blocks() if sequence.is_interactive else 0,
        )
        return None if fits else WaitReason.KV_BLOCKS

    def _open_seats(self, sequence_class: SequenceClass, tenants: set[str]) -> set[str]:
        return self._seats.open_to(sequence_class, tenants, self._now, quantum=self.quantum)

    def _is_awaiting(self, sequence: Sequence) -> bool:
        """Whether its next block is being computed, so that a moment later it comes from the cache.

        By one that runs, and not by offline work, which may pause for long, if a person waits.
        """
        computing = self._memory.cache.awaited(sequence)
        if computing is None or computing.id not in self._roster.running:
            return False
        return computing.is_interactive or not sequence.is_interactive

    def _may_be_long(self, sequence: Sequence) -> bool:
        threshold = self._limits.long_context_threshold
        if sequence.num_prompt_tokens <= threshold:
            return True
        competitors = self._competitors(sequence)
        num_long = sum(each.num_prompt_tokens > threshold for each in competitors)
        return num_long < self._limits.max_num_long_context_seqs

    def _is_below_offline_ceiling(self, sequence: Sequence) -> bool:
        needed = self._way.num_offline_blocks() + self._memory.cache.num_blocks_to_admit(sequence)
        return needed <= admission.offline_blocks(self._memory.cache, self._limits)

    def _competitors(self, sequence: Sequence) -> list[Sequence]:
        """Whose blocks and growth it has to reckon with: offline work gives way to interactive."""
        others = (each for each in self._roster.started() if each is not sequence)
        return [each for each in others if each.is_interactive or not sequence.is_interactive]

    def _start(self, sequence: Sequence) -> None:
        self._way.vacate_seats(for_more=1)
        is_first = sequence.scheduled_at is None
        self._roster.start(sequence)
        self._memory.admit(sequence)
        if is_first:
            self._note_first_admission(sequence)
        self._account(sequence, self._roster.charge_cached(sequence, self._now))

    def _note_first_admission(self, sequence: Sequence) -> None:
        num_cached = sequence.num_computed_tokens
        sequence.scheduled_at = self._now
        sequence.num_cached_tokens = num_cached
        sequence.num_prompt_tokens_computed = num_cached
        self._figures.num_prefix_queried_tokens += sequence.num_prompt_tokens
        self._figures.num_prefix_hit_tokens += num_cached

    def _take_up_the_oldest(self) -> None:
        """The oldest interactive sequence that ever ran runs, whoever has to get up for it."""
        if not self._roster.parked:
            return
        oldest = oldest_interactive(self._roster.started())
        if oldest is None or oldest.id in self._roster.running:
            return
        self._way.reclaim(oldest, self._memory.cache.num_blocks_to_admit, list(self._roster.started()))
        if len(self._roster.running) >= self._limits.max_num_seqs:
            loser = victim(self._roster.running.values(), virtual=self._roster.virtual, spared=(oldest,))
            assert loser is not None, "there is at least one seat"
            self._way.park(loser)
        if self._memory.cache.num_blocks_to_admit(oldest) <= self._memory.cache.num_free_blocks:
            self._start(oldest)  # its rows come with those of the others

    # --- rows ------------------------------------------------------------------------------------------

    def _add_chunk(self, sequence: Sequence, *, reserve: int = 0) -> None:
        """As much of a sequence's chunk as there is room for beside `reserve` tokens of others."""
        if sequence.is_unpaid:  # computed to its end, it would sample
            return
        num_planned = self._draft.num_planned_tokens(sequence)
        whole = min(sequence.num_uncomputed_tokens, self._limits.prefill_chunk_size)
        num_tokens = min(whole - num_planned, self._draft.room_for(sequence, reserve=reserve))
        if num_tokens <= 0:
            return
        start = sequence.num_computed_tokens + num_planned
        end = start + num_tokens
        num_recomputed = max(0, min(end, sequence.num_charged_tokens) - start)
        sequence.num_recomputed_tokens += num_recomputed
        self._draft.num_recomputed_tokens += num_recomputed
        self._account(sequence, self._roster.charge_chunk(sequence, end, self._now))
        self._draft.add_chunk(sequence, num_tokens)

    def _account(self, sequence: Sequence, cost: float) -> None:
        if sequence.is_interactive:
            self._earn(cost)
        else:
            self._spend(cost)

    def _earn(self, cost: float) -> None:
        """Offline work that is there earns its floor of what others get."""
        if self._roster.num_running[OFFLINE] or self._roster.rooms[OFFLINE]:
            self._floor.earn(cost * self._limits.offline_min_share, most=2.0 * self._least_chunk)

    def _spend(self, cost: float) -> None:
        self._floor.spend(cost)

    # --- who runs --------------------------------------------------------------------------------------

    def is_long(self, sequence: Sequence) -> bool:
        """Whether what is left of its prompt takes more than one chunk."""
        return is_long(sequence, self._limits)

    def _look_at_running(self) -> "Running":
        """Sorts the running set, without who is not paid for; in one pass, because it may hold hundreds."""
        decoding: list[Sequence] = []
        outgrown: list[Sequence] = []
        begun: list[Sequence] = []
        block_size = self._memory.cache.block_size
        for sequence in self._roster.running.values():
            if sequence.sequence_class is OFFLINE or (sequence.num_paid_tokens and sequence.is_unpaid):
                continue
            num_tokens = len(sequence.token_ids)
            if num_tokens - sequence.num_computed_tokens == 1 and num_tokens > sequence.num_prompt_tokens:
                decoding.append(sequence)
                if num_tokens > len(sequence.block_table) * block_size:
                    outgrown.append(sequence)
            else:
                begun.append(sequence)
        self._at_start = Running(decoding, outgrown, begun)
        return self._at_start

    def _in_fair_order(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """By their tenants' counters; but the oldest first, which is to come to its end."""
        found = list(sequences)
        if len(found) < 2:
            return found
        oldest = min(found, key=lambda each: (each.arrived_at, each.id))
        return sorted(
            found, key=lambda each: (each is not oldest, self._roster.virtual(each), each.arrived_at, each.id)
        )
