"""What computes a step: a fake model on a virtual clock, or a real runner on the machine's."""

import random
import time
from collections.abc import Iterable
from itertools import accumulate
from typing import Protocol

from engine.core.step import PlannedRow, StepPlan, StepResult
from engine.runner.runner import Runner
from tests.builders.simulator.laws import StepTimeLaw
from tests.builders.simulator.requests import END_TOKEN, VOCAB_SIZE

_MASK = (1 << 61) - 1
_SEED = 0x9E3779B97F4A7C15 & _MASK


def _mix(state: int, token_id: int) -> int:
    return (state * 6364136223846793005 + token_id + 1442695040888963407) & _MASK


def _token(state: int) -> int:
    """Never END_TOKEN."""
    return 1 + (state >> 20) % (VOCAB_SIZE - 1)


class ContextHashModel:
    """A model whose next token is a hash of all tokens before it, read through the block table.

    A slot's "keys and values" are the hash of the text up to it. So a row that is given another text's block,
    or one that was never computed, goes on with another token than an undisturbed run; see `continuation`.
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._slots = [0] * (num_blocks * block_size)
        self._ends: dict[str, int] = {}

    def expect(self, sequence_id: str, num_tokens: int) -> None:
        """The sequence ends by itself when prompt and output are `num_tokens` long."""
        self._ends[sequence_id] = num_tokens

    def forget(self, sequence_id: str) -> None:
        """The sequence is over."""
        del self._ends[sequence_id]

    def compute(self, plan: StepPlan) -> StepResult:
        """Writes the plan's rows into the cache and samples."""
        sampled: dict[str, tuple[int, ...]] = {}
        for row in plan.rows:
            state = self._write(row)
            if row.sampling is not None:
                is_last = row.start + len(row.token_ids) + 1 == self._ends[row.sequence_id]
                sampled[row.sequence_id] = (END_TOKEN if is_last else _token(state),)
        return StepResult(step_id=plan.step_id, sampled=sampled)

    def _write(self, row: PlannedRow) -> int:
        size, slots, table = self._block_size, self._slots, row.block_table
        position, state = row.start, _SEED
        if position:
            state = slots[table[(position - 1) // size] * size + (position - 1) % size]
        if len(row.token_ids) == 1:  # a decoding row: most are
            state = _mix(state, row.token_ids[0])
            slots[table[position // size] * size + position % size] = state
            return state
        states = list(accumulate(row.token_ids, _mix, initial=state))
        written, end = 1, len(states)
        while written < end:
            slot = table[position // size] * size + position % size
            count = min(end - written, size - position % size)
            slots[slot : slot + count] = states[written : written + count]
            written, position = written + count, position + count
        return states[-1]


def continuation(prompt: Iterable[int], num_output_tokens: int) -> list[int]:
    """What ContextHashModel answers to a prompt that nothing disturbs."""
    state = _SEED
    for token_id in prompt:
        state = _mix(state, token_id)
    output = []
    for _ in range(num_output_tokens - 1):
        output.append(_token(state))
        state = _mix(state, output[-1])
    return [*output, END_TOKEN]


class Machine(Protocol):
    """Computes steps, and owns the clock that they take."""

    def now(self) -> float:
        """Seconds since the start."""

    def skip_to(self, moment: float) -> None:
        """Lets the time until `moment` pass; nothing is computed meanwhile."""

    def expect(self, sequence_id: str, num_tokens: int) -> None:
        """A sequence was taken that ends when it is `num_tokens` long."""

    def forget(self, sequence_id: str) -> None:
        """A sequence is over."""

    def compute(self, plan: StepPlan) -> StepResult:
        """Computes a step; the clock has moved when it returns."""


class SimulatedMachine:
    """The hashing model under a law of step times and a virtual clock. The scheduler itself takes no time."""

    def __init__(self, law: StepTimeLaw, *, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self._law = law
        self._model = ContextHashModel(num_blocks=num_blocks, block_size=block_size)
        self._generator = random.Random(seed)
        self._now = 0.0
        self.expect = self._model.expect
        self.forget = self._model.forget

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def skip_to(self, moment: float) -> None:
        """Moves the clock."""
        self._now = max(self._now, moment)

    def compute(self, plan: StepPlan) -> StepResult:
        """Moves the clock by what the law says."""
        self._now += self._law.seconds(plan, self._generator)
        return self._model.compute(plan)


class RealMachine:
    """A real runner under the machine's own clock: the scheduler's time counts too. Idle time is skipped.

    The text is whatever the model says; a sequence ends at its `max_tokens`.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._offset = -time.perf_counter()

    def now(self) -> float:
        """Seconds of work and of skipped idleness."""
        return time.perf_counter() + self._offset

    def skip_to(self, moment: float) -> None:
        """Pretends that it is `moment` already."""
        self._offset += max(0.0, moment - self.now())

    def expect(self, sequence_id: str, num_tokens: int) -> None:
        """The model does not know lengths."""

    def forget(self, sequence_id: str) -> None:
        """Nothing is kept."""

    def compute(self, plan: StepPlan) -> StepResult:
        """Takes as long as it takes."""
        return self._runner.collect(self._runner.launch(plan))
