"""Schedulers that take in more than their caches hold in the end, so that somebody has to give way."""

from engine.core.forecast import LEAST_LENGTHS
from engine.core.scheduler import Scheduler
from tests.builders.sequences import run_until_idle, sequence, submit


def expect_short_answers(engine: Scheduler) -> None:
    """Shows an idle scheduler many answers of one token: it will then think that all answers are short."""
    for offline in (False, True):
        for index in range(LEAST_LENGTHS):
            submit(engine, sequence(f"taught{index}", num_prompt_tokens=1, max_tokens=1, offline=offline))
        run_until_idle(engine)
