"""A real engine over a real model, asked for fixed batches through its WebSocket, with every step timed."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.core.limits import Limits
from engine.core.slo import SloTargets
from engine.core.step import StepPlan, StepResult
from engine.models.loading import LoadedModel
from engine.protocol import RequestClass, Sampling
from engine.runner.model_runner import ModelRunner
from tests.builders.engine_peer import dial, request
from tests.builders.scripted_engine import scripted_engine

BLOCK_SIZE = 32
NUM_THREADS = 2
LIMITS = Limits(
    max_num_seqs=64,
    max_num_batched_tokens=512,
    max_num_prefill_tokens=448,
    prefill_chunk_size=256,
    max_model_len=8192,
    max_output_len=4096,
)
PATIENT = SloTargets(
    ttft_p95_ms=60_000.0,
    itl_p95_ms=60_000.0,
    queue_wait_p95_ms=60_000.0,
    kv_cache_utilization_max=1.0,
    admission_reject_rate_max=1.0,
)


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """One step: when it was launched, what it computed, and how long each operator took."""

    launched_at: float
    num_rows: int
    num_tokens: int
    num_context_tokens: int
    seconds: Mapping[str, float]


@dataclass
class TimedRunner:
    """A runner that takes down what each step of another one cost."""

    runner: ModelRunner
    steps: list[TimedStep] = field(default_factory=list)

    def launch(self, plan: StepPlan) -> tuple[StepPlan, float, dict[str, float], Any]:
        """Launches, and remembers the clock."""
        return plan, time.perf_counter(), self.runner.seconds, self.runner.launch(plan)

    def collect(self, in_flight: tuple[StepPlan, float, dict[str, float], Any]) -> StepResult:
        """Collects, and takes the step down."""
        plan, launched_at, before, launched = in_flight
        result = self.runner.collect(launched)
        spent = {name: after - before[name] for name, after in self.runner.seconds.items()}
        self.steps.append(
            TimedStep(
                launched_at=launched_at,
                num_rows=len(plan.rows),
                num_tokens=plan.num_tokens,
                num_context_tokens=plan.num_context_tokens,
                seconds=spent,
            )
        )
        return result


def decode_steps(
    model: LoadedModel, tokenizer_json: str, *, num_seqs: int, prompt_len: int, output_len: int
) -> list[TimedStep]:
    """The steps in which `num_seqs` requests at once do nothing but decode."""
    runner = TimedRunner(ModelRunner(model, num_blocks=1600, block_size=BLOCK_SIZE, num_threads=NUM_THREADS))
    asyncio.run(_answer_all(runner, model, tokenizer_json, num_seqs, prompt_len, output_len))
    return [step for step in runner.steps if step.num_rows == step.num_tokens == num_seqs]


async def _answer_all(
    runner: TimedRunner,
    model: LoadedModel,
    tokenizer_json: str,
    num_seqs: int,
    prompt_len: int,
    output_len: int,
) -> None:
    async with scripted_engine(
        tokenizer_json,
        limits=LIMITS,
        runner=runner,
        num_blocks=1600,
        block_size=BLOCK_SIZE,
        targets=PATIENT,
        vocab_size=model.vocab_size,
    ) as engine:
        peer = await dial(engine)
        sampling = Sampling(temperature=0.0, max_tokens=output_len, min_tokens=output_len, ignore_eos=True)
        for index in range(num_seqs):
            first = 1000 + 37 * index
            await peer.send(
                request(
                    f"r{index}",
                    tenant=f"tenant{index}",  # one tenant may not fill the queue
                    prompt_ids=tuple((first + 11 * i) % 40_000 for i in range(prompt_len)),
                    sampling=sampling,
                    timeout_ms=600_000,
                    request_class=RequestClass.INTERACTIVE,
                )
            )
        await peer.end_of(*(f"r{index}" for index in range(num_seqs)))


def default_tokenizer(directory: Path) -> str:
    """The model's tokenizer.json, which an engine hands on unread."""
    return (directory / "tokenizer.json").read_text(encoding="utf-8")
