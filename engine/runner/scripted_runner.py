"""A runner without a model: tokens by rule, time by setting. For tests, benchmarks, development."""

import time
from collections.abc import Callable

from engine.core.step import PlannedRow, StepPlan, StepResult

Script = Callable[[PlannedRow], int]


def letters(first_id: int, num_ids: int) -> Script:
    """Tokens that walk through `num_ids` ids from `first_id`, chosen by position alone.

    So the answer to a prompt is the same under any batching, chunking or preemption.
    """

    def next_token(row: PlannedRow) -> int:
        banned = row.sampling.banned_token_ids if row.sampling else ()
        position = row.start + len(row.token_ids)
        token_id = first_id + position % num_ids
        while token_id in banned:
            token_id = first_id + (token_id - first_id + 1) % num_ids
        return token_id

    return next_token


class ScriptedRunner:
    """Answers plans from a script. `seconds_per_step` and `seconds_per_token` make it as slow as a model."""

    def __init__(
        self, script: Script, *, seconds_per_step: float = 0.0, seconds_per_token: float = 0.0
    ) -> None:
        self._script = script
        self._seconds_per_step = seconds_per_step
        self._seconds_per_token = seconds_per_token

    def launch(self, plan: StepPlan) -> StepPlan:
        """Nothing starts: `collect` does it all."""
        return plan

    def collect(self, in_flight: StepPlan) -> StepResult:
        """The script's next token for every row that samples, after the time that a model would take."""
        seconds = self._seconds_per_step + self._seconds_per_token * in_flight.num_tokens
        if seconds > 0:
            time.sleep(seconds)
        sampled = {
            row.sequence_id: (self._script(row),) for row in in_flight.rows if row.sampling is not None
        }
        return StepResult(step_id=in_flight.step_id, sampled=sampled)
