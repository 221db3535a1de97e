"""Batching as it was before iteration-level scheduling: rectangles of prompts, each run to its end.

Drives a runner with hand-made plans, under the same limits. The comparison of Orca (Yu et al., OSDI 2022).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.core.limits import Limits
from engine.core.step import PlannedRow, SamplingParams, StepPlan
from tests.builders.simulator.models import Machine
from tests.builders.simulator.requests import Request

GREEDY: Final = SamplingParams(temperature=0.0)
PADDING: Final = 0  # a token id


@dataclass(kw_only=True)
class Run:
    """What became of the requests, by their place in the list, and what was computed and held for it."""

    seconds: float = 0.0
    num_computed_tokens: int = 0
    latencies: dict[int, float] = field(default_factory=dict)  # seconds, to the own last token
    unused_slots: list[int] = field(default_factory=list)  # of each row of each step: held, without a token


@dataclass(frozen=True, kw_only=True)
class Member:
    """A request in a batch, and the blocks that are reserved for its row."""

    place: int
    request: Request
    block_table: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Prompt and answer."""
        return self.request.num_prompt_tokens + self.request.num_output_tokens


Leaves = Callable[[Member, int], bool]
"""Whether a member leaves the batch before its step of that number (0 is the first after the prompts)."""


def nobody_leaves(member: Member, step: int) -> bool:
    """Fixed batching: finished rows are computed on."""
    return False


def finished_leave(member: Member, step: int) -> bool:
    """The kinder variant."""
    return step + 1 >= member.request.num_output_tokens


def serve_in_fixed_batches(
    requests: Sequence[Request], machine: Machine, limits: Limits, *, block_size: int, leaves: Leaves
) -> Run:
    """Serves requests, in the order in which they come, in batches of those who are there."""
    run = Run()
    waiting = deque(enumerate(requests))
    while waiting:
        machine.skip_to(waiting[0][1].at)
        batch: list[tuple[int, Request]] = []
        while waiting and len(batch) < limits.max_num_seqs and waiting[0][1].at <= machine.now():
            batch.append(waiting.popleft())
        _Rectangle(batch, machine, limits, block_size=block_size, leaves=leaves, run=run).serve()
    run.seconds = machine.now()
    return run


class _Rectangle:
    """One batch, from its padded prompts to the last token of its longest answer."""

    def __init__(
        self,
        batch: Sequence[tuple[int, Request]],
        machine: Machine,
        limits: Limits,
        *,
        block_size: int,
        leaves: Leaves,
        run: Run,
    ) -> None:
        self._machine = machine
        self._limits = limits
        self._leaves = leaves
        self._run = run
        self._num_prompt_tokens = max(request.num_prompt_tokens for _, request in batch)
        self._num_output_tokens = max(request.num_output_tokens for _, request in batch)
        width = -(-(self._num_prompt_tokens + self._num_output_tokens) // block_size)
        self._num_slots = width * block_size
        self._members = [
            Member(place=place, request=request, block_table=tuple(range(row * width, (row + 1) * width)))
            for row, (place, request) in enumerate(batch)
        ]

    def serve(self) -> None:
        """Prompts first, in steps of the limits' size, then all rows in lockstep."""
        self._prefill()
        for step in range(self._num_output_tokens):
            self._note_ends(step)
            rows = [member for member in self._members if not self._leaves(member, step)]
            if step + 1 == self._num_output_tokens or not rows:
                return
            position = self._num_prompt_tokens + step
            self._compute([_row(member, (PADDING,), position, sampling=GREEDY) for member in rows])
            self._run.unused_slots += [self._unused(member, step + 1) for member in rows]

    def _prefill(self) -> None:
        """Every row as long as the longest: padding goes in front, so that the prompt's end is the row's."""
        budget, rows = self._limits.max_num_prefill_tokens, list[PlannedRow]()
        for member in self._members:
            prompt = member.request.prompt()
            padded = [PADDING] * (self._num_prompt_tokens - len(prompt)) + prompt
            start = 0
            while start < len(padded):
                size = min(budget, self._limits.prefill_chunk_size, len(padded) - start)
                is_last = start + size == len(padded)
                chunk = tuple(padded[start : start + size])
                rows.append(_row(member, chunk, start, sampling=GREEDY if is_last else None))
                start, budget = start + size, budget - size
                if budget == 0 or not is_last:  # a row stands in a step once
                    self._compute(rows)
                    budget, rows = self._limits.max_num_prefill_tokens, []
        if rows:
            self._compute(rows)

    def _compute(self, rows: Sequence[PlannedRow]) -> None:
        plan = StepPlan(step_id=0, rows=tuple(rows))
        self._machine.compute(plan)
        self._run.num_computed_tokens += plan.num_tokens

    def _note_ends(self, step: int) -> None:
        """Whoever has its last token now."""
        for member in self._members:
            if member.request.num_output_tokens == step + 1:
                self._run.latencies[member.place] = self._machine.now() - member.request.at

    def _unused(self, member: Member, step: int) -> int:
        """Slots of the row that hold no token of the request's own."""
        return self._num_slots - min(member.num_tokens, member.request.num_prompt_tokens + step)


def _row(
    member: Member, token_ids: tuple[int, ...], start: int, *, sampling: SamplingParams | None
) -> PlannedRow:
    return PlannedRow(f"row-{member.place}", token_ids, start, member.block_table, sampling)
