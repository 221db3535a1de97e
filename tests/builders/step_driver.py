"""Drives a runner with hand-made plans, in a scheduler's place: chunked prompts, then one token a step."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.core.step import PlannedRow, SamplingParams, StepPlan
from engine.runner.runner import Runner

GREEDY = SamplingParams(temperature=0.0)


@dataclass(kw_only=True)
class DrivenSequence:
    """One prompt on its way: what is computed, and what was sampled."""

    id: str
    prompt: tuple[int, ...]
    block_table: tuple[int, ...]
    sampling: SamplingParams = GREEDY
    num_computed: int = 0
    output: list[int] = field(default_factory=list)
    error: str | None = None

    def next_row(self, chunk_size: int) -> PlannedRow:
        """The next chunk of the prompt, or the last sampled token."""
        known = (*self.prompt, *self.output)
        chunk = known[self.num_computed : self.num_computed + chunk_size]
        is_last = self.num_computed + len(chunk) == len(known)
        return PlannedRow(
            sequence_id=self.id,
            token_ids=chunk,
            start=self.num_computed,
            block_table=self.block_table,
            sampling=self.sampling if is_last else None,
        )


def driven_sequences(
    prompts: Sequence[Sequence[int]],
    *,
    num_blocks: int,
    block_size: int,
    max_tokens: int,
    sampling: Sequence[SamplingParams] | None = None,
    seed: int = 0,
) -> list[DrivenSequence]:
    """A sequence for each prompt, with enough blocks for `max_tokens` more, drawn at random from the pool."""
    free = list(range(num_blocks))
    random.Random(seed).shuffle(free)
    sequences = []
    for index, prompt in enumerate(prompts):
        needed = math.ceil((len(prompt) + max_tokens) / block_size)
        table, free = free[:needed], free[needed:]
        assert len(table) == needed, "the pool is too small for these prompts"
        sequences.append(
            DrivenSequence(
                id=f"sequence-{index}",
                prompt=tuple(prompt),
                block_table=tuple(table),
                sampling=sampling[index] if sampling else GREEDY,
            )
        )
    return sequences


def drive(
    runner: Runner,
    sequences: Sequence[DrivenSequence],
    *,
    chunk_size: int,
    max_tokens: int,
    num_new_per_step: int = 2,
) -> None:
    """Runs all sequences in common steps until each has `max_tokens` or an error.

    `num_new_per_step` of them join at each step, so that chunks of some meet decode rows of others.
    """
    for step_id in range(1_000_000):
        joined = sequences[: (step_id + 1) * num_new_per_step]
        unfinished = [s for s in joined if s.error is None and len(s.output) < max_tokens]
        if not unfinished and len(joined) == len(sequences):
            return
        _step(runner, step_id, unfinished, chunk_size)


def drive_alone(
    runner: Runner, sequences: Sequence[DrivenSequence], *, chunk_size: int, max_tokens: int
) -> None:
    """Runs the sequences one after another."""
    for sequence in sequences:
        drive(runner, [sequence], chunk_size=chunk_size, max_tokens=max_tokens)


def _step(runner: Runner, step_id: int, sequences: Sequence[DrivenSequence], chunk_size: int) -> None:
    rows = {sequence.id: sequence.next_row(chunk_size) for sequence in sequences}
    plan = StepPlan(step_id=step_id, rows=tuple(_decodes_first(rows.values())))
    result = runner.collect(runner.launch(plan))
    for sequence in sequences:
        sequence.num_computed += len(rows[sequence.id].token_ids)
        sequence.output.extend(result.sampled.get(sequence.id, ()))
        sequence.error = result.errors.get(sequence.id)


def _decodes_first(rows: Iterable[PlannedRow]) -> list[PlannedRow]:
    return sorted(rows, key=lambda row: len(row.token_ids) > 1)
