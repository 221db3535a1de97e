"""A step while it is planned: the rows so far, and the room that is left in it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from engine.core.limits import Limits
from engine.core.predictor import StepLoad, StepTimeModel
from engine.core.sequence import GenerationParams, Sequence
from engine.core.step import PlannedRow, SamplingParams, StepPlan, prefill_pairs

ROUNDING = 1e-6  # of a token: sums of seconds are not exact, and whoever is given a token's time gets it


class StepDraft:
    """Decode rows first, then chunks of prefill, within the limits' budgets and a step time."""

    def __init__(self, limits: Limits, step_time: StepTimeModel) -> None:
        self._step_time = step_time
        self._token_budget = limits.max_num_batched_tokens
        self._prefill_budget = limits.max_num_prefill_tokens
        self._decode_rows: list[PlannedRow] = []
        self._chunks: dict[Sequence, int] = {}  # tokens, after those that are computed
        self._num_prefill_tokens = 0
        self._num_context_tokens = 0
        self._num_prefill_pairs = 0
        self._longest_seconds = math.inf  # what prefill may make of the step; infinite if nobody minds
        self.num_recomputed_tokens = 0
        self.num_kept_tokens = 0  # of the prefill room, for whom they are due to

    @property
    def load(self) -> StepLoad:
        """What the rows so far amount to."""
        return StepLoad(
            self._num_prefill_tokens,
            len(self._decode_rows),
            self._num_context_tokens,
            self._num_prefill_pairs,
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be computed."""
        return not self._decode_rows and not self._chunks

    @property
    def prefill_room(self) -> int:
        """Prefill tokens that may still join if they attend to nothing before them."""
        most = min(self._prefill_budget, self._token_budget - len(self._decode_rows))
        room = most - self._num_prefill_tokens
        if self._longest_seconds < math.inf:
            in_time = self._seconds_left / self._step_time.seconds_per_prefill_token
            room = min(room, math.floor(in_time + ROUNDING))
        return max(0, room - self.num_kept_tokens)

    def room_for(self, sequence: Sequence, *, reserve: int = 0) -> int:
        """Prefill tokens of a sequence that may still join, beside `reserve` tokens of others.

        The more stands before them, the fewer they are; but while there is room at all one may always join,
        or a prompt could be too long ever to move on.
        """
        most = self.prefill_room - reserve
        if most <= 0 or self._longest_seconds == math.inf:
            return max(0, most)
        kept_seconds = (reserve + self.num_kept_tokens) * self._step_time.seconds_per_prefill_token
        start = sequence.num_computed_tokens + self.num_planned_tokens(sequence)
        return min(most, max(1, self._step_time.chunk_within(self._seconds_left - kept_seconds, start)))

    @property
    def _seconds_left(self) -> float:
        return self._longest_seconds - self._step_time.seconds(self.load)

    @property
    def decode_room(self) -> int:
        """Decode rows that may still join."""
        return max(0, self._token_budget - len(self._decode_rows) - self._num_prefill_tokens)

    def keep_within(self, seconds: float, *, at_least: int) -> None:
        """Lets no more prefill join than what is predicted to end in time.

        The time of `at_least` tokens without context is given always. Rows that take longer already are no
        reason: what cannot be kept shall not cost anything.
        """
        if self._step_time.seconds(self.load) <= seconds:
            self.stop_at(seconds, at_least=at_least)

    def stop_at(self, seconds: float, *, at_least: int) -> None:
        """As `keep_within`, but what takes longer already gets the time of `at_least` tokens and no more."""
        if not self._step_time.knows_prefill:
            return
        least = self._step_time.seconds(self.load) + at_least * self._step_time.seconds_per_prefill_token
        self._longest_seconds = min(self._longest_seconds, max(seconds, least))

    @contextmanager
    def own_hold(self) -> Iterator[None]:
        """Whatever holds back prefill within the block does so no longer after it."""
        before = self._longest_seconds
        yield
        self._longest_seconds = before

    def add_decodes(self, sequences: list[Sequence]) -> None:
        """A row for each sequence that decodes: its newest token."""
        # The hottest loop of planning: a row made this way takes 380 ns, and 600 ns by its constructor.
        add, make, num_context_tokens = self._decode_rows.append, tuple.__new__, 0
        for sequence in sequences:
            start = sequence.num_computed_tokens
            num_context_tokens += start
            facts = (
                sequence.id,
                (sequence.token_ids[start],),
                start,
                tuple(sequence.block_table),
                sequence.sampling or sampling_of(sequence),
            )
            add(make(PlannedRow, facts))
        self._num_context_tokens += num_context_tokens

    def num_planned_tokens(self, sequence: Sequence) -> int:
        """How many tokens of a sequence's chunk are in the step already."""
        return self._chunks.get(sequence, 0)

    def add_chunk(self, sequence: Sequence, num_tokens: int) -> None:
        """The next `num_tokens` of a sequence's known text; they lengthen the chunk that it has, if any."""
        num_planned = self.num_planned_tokens(sequence)
        self._num_prefill_tokens += num_tokens
        self._num_prefill_pairs += prefill_pairs(sequence.num_computed_tokens + num_planned, num_tokens)
        self._chunks[sequence] = num_planned + num_tokens

    def plan(self, step_id: int) -> StepPlan:
        """The step as data."""
        budget = len(self._decode_rows) + self._num_prefill_tokens + self.prefill_room
        return StepPlan(
            step_id=step_id,
            rows=(*self._decode_rows, *(_chunk_row(*chunk) for chunk in self._chunks.items())),
            token_budget=budget,
            num_decode_rows=len(self._decode_rows),
            num_prefill_tokens=self._num_prefill_tokens,
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_context_tokens=self._num_context_tokens,
            num_prefill_pairs=self._num_prefill_pairs,
        )


def _chunk_row(sequence: Sequence, num_tokens: int) -> PlannedRow:
    start = sequence.num_computed_tokens
    end = start + num_tokens
    return PlannedRow(
        sequence.id,
        tuple(sequence.token_ids[start:end]),
        start,
        tuple(sequence.block_table),
        sampling_of(sequence) if end == sequence.num_tokens else None,
    )


def sampling_of(sequence: Sequence) -> SamplingParams:
    """How the next token is drawn; the same object for every token of a sequence, but for `min_tokens`."""
    params = sequence.params
    if sequence.num_output_tokens < params.min_tokens:
        return _sampling(params, banned_token_ids=tuple(sorted(params.stop_token_ids)))
    if sequence.sampling is None:
        sequence.sampling = _sampling(params, banned_token_ids=())
    return sequence.sampling


def _sampling(params: GenerationParams, *, banned_token_ids: tuple[int, ...]) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=params.seed,
        banned_token_ids=banned_token_ids,
    )
