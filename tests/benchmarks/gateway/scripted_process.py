"""The real engine as a process, with the scripted runner in place of a model; all else of it is real.

It prints {"wire": PORT} once it listens. When its standard input ends it writes, if asked for, when each
request was computed: the first and the last step that it had a row in, in seconds.

A step takes the time that is asked for, the scheduler's own included, unless that alone takes longer. A first
token comes with the first step after the request's arrival: after one to two steps, as one may be under way.
"""

import argparse
import json
import time
from pathlib import Path

import uvloop

from deploy.garbage import collect_seldom
from engine.core.limits import Limits
from engine.core.slo import SloTargets
from engine.core.step import StepPlan, StepResult
from engine.runner.scripted_runner import ScriptedRunner, letters
from tests.benchmarks.gateway.child import until_stdin_ends
from tests.builders.engine_messages import byte_level_tokenizer_json, token_ids_of
from tests.builders.scripted_engine import scripted_engine

MAX_NUM_SEQS = 512
BLOCK_SIZE = 16
NUM_BLOCKS = 16_384
LIMITS = Limits(
    max_num_seqs=MAX_NUM_SEQS,
    max_num_batched_tokens=8_192,
    max_num_prefill_tokens=4_096,
    max_model_len=2_048,
    max_output_len=1_024,
    prefill_chunk_size=1_024,
    waiting_timeout_ms=30_000,
)
# What is asked here is what the gateway keeps: guardrails would slow the load down to keep other promises.
NO_PROMISES = SloTargets(ttft_p95_ms=600_000, itl_p95_ms=60_000, queue_wait_p95_ms=600_000)


class PacedRunner:
    """Answers by the script, each step `step_seconds` after the one before. Notes who was computed when."""

    def __init__(self, step_seconds: float, *, notes_spans: bool) -> None:
        self._scripted = ScriptedRunner(letters(token_ids_of("a")[0], 26))
        self._step_seconds = step_seconds
        self._notes_spans = notes_spans
        self._due_at = 0.0
        self.spans: dict[str, tuple[float, float]] = {}

    def launch(self, plan: StepPlan) -> StepPlan:
        """Nothing starts: `collect` does it all."""
        return plan

    def collect(self, in_flight: StepPlan) -> StepResult:
        """The script's tokens, when the step is due."""
        began_at = time.monotonic()
        self._due_at = self._next_due_at(began_at)
        time.sleep(self._due_at - began_at)
        if self._notes_spans:
            self._note(in_flight, began_at, time.monotonic())
        return self._scripted.collect(in_flight)

    def _next_due_at(self, now: float) -> float:
        """In time with the steps before; after a rest, a step's time from now."""
        if now - self._due_at > 2 * self._step_seconds:
            return now + self._step_seconds
        return max(self._due_at + self._step_seconds, now)

    def _note(self, plan: StepPlan, began_at: float, ended_at: float) -> None:
        for row in plan.rows:
            first, _ = self.spans.get(row.sequence_id, (began_at, ended_at))
            self.spans[row.sequence_id] = (first, ended_at)


async def main() -> None:
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--port", type=int, default=0, help="where to listen (default: anywhere)")
    parser.add_argument("--spans", type=Path, metavar="FILE")
    options = parser.parse_args()
    runner = PacedRunner(options.step_ms / 1_000, notes_spans=options.spans is not None)
    async with scripted_engine(
        byte_level_tokenizer_json(),
        limits=LIMITS,
        runner=runner,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        targets=NO_PROMISES,
        name="tiny",
        port=options.port,
    ) as engine:
        print(json.dumps({"wire": int(engine.url.rpartition(":")[2])}), flush=True)
        await until_stdin_ends()
    if options.spans is not None:
        options.spans.write_text(json.dumps(runner.spans))


if __name__ == "__main__":
    collect_seldom()
    uvloop.run(main())
