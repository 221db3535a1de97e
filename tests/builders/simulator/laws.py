"""How long a step takes, as a linear law of what it computes. Knows plans, not schedulers."""

import random
from dataclasses import dataclass

import numpy

from engine.core.step import StepPlan


@dataclass(frozen=True, kw_only=True)
class StepTimeLaw:
    """Seconds of a step: a constant, and shares for prompt tokens, decoding rows and the context they read.

    `noise` is the standard deviation of a factor around 1, never below 0.5, drawn by the caller's generator.
    """

    step_seconds: float
    prefill_token_seconds: float
    decode_row_seconds: float
    context_token_seconds: float
    noise: float = 0.0

    def seconds(self, plan: StepPlan, generator: random.Random) -> float:
        """How long `plan` takes."""
        seconds = self.seconds_of(work_of(plan))
        return seconds * max(0.5, generator.gauss(1.0, self.noise)) if self.noise else seconds

    def seconds_of(self, work: "StepWork") -> float:
        """How long such a step takes without noise."""
        return (
            self.step_seconds
            + self.prefill_token_seconds * work.num_prefill_tokens
            + self.decode_row_seconds * work.num_decode_rows
            + self.context_token_seconds * work.num_context_tokens
        )


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """What a step computes, in the terms of the law."""

    num_prefill_tokens: int
    num_decode_rows: int
    num_context_tokens: int


def work_of(plan: StepPlan) -> StepWork:
    """Counted from the plan's rows: what a plan says of its context is the scheduler's word."""
    num_decode_rows = plan.num_decode_rows
    return StepWork(
        num_prefill_tokens=plan.num_tokens - num_decode_rows,
        num_decode_rows=num_decode_rows,
        num_context_tokens=sum([row.start for row in plan.rows]),
    )


def fitted(samples: list[tuple[StepWork, float]]) -> StepTimeLaw:
    """The law that misses the measured steps (work, seconds) by the least squares; no share below zero."""
    facts = numpy.array(
        [[1, work.num_prefill_tokens, work.num_decode_rows, work.num_context_tokens] for work, _ in samples],
        dtype=float,
    )
    seconds = numpy.array([measured for _, measured in samples])
    shares = numpy.zeros(4)
    active = [0, 1, 2, 3]
    while active:  # drop what would be negative, and fit the rest anew
        solution = numpy.linalg.lstsq(facts[:, active], seconds, rcond=None)[0]
        if solution.min() >= 0:
            shares[active] = solution
            break
        active.pop(int(solution.argmin()))
    return StepTimeLaw(
        step_seconds=float(shares[0]),
        prefill_token_seconds=float(shares[1]),
        decode_row_seconds=float(shares[2]),
        context_token_seconds=float(shares[3]),
    )


GPU_LIKE = StepTimeLaw(
    step_seconds=8e-3,
    prefill_token_seconds=30e-6,
    decode_row_seconds=30e-6,
    context_token_seconds=0.05e-6,
)
"""A model of 8 billion parameters in bfloat16 on an 80 GB accelerator (990 TFLOP/s, 3.35 TB/s):
16 GB of weights are read in 4.8 ms, and 3 ms are the host's; a token takes 16 GFLOP at 55 % of the peak;
a context token's cache (32 layers, 8 heads of 128, keys and values: 131 kB) is read at 80 % of the bandwidth.
What a chunk computes against its own context is left out: at these lengths a tenth of the rest at most.
"""

GPU_CACHE_TOKENS = 400_000  # what (0.9 x 80 GB - 16 GB) of such a cache hold, rounded down

CPU_LIKE = StepTimeLaw(
    step_seconds=47e-3,
    prefill_token_seconds=1.6e-3,
    decode_row_seconds=10e-3,
    context_token_seconds=1e-6,
)
"""The default model (135 million parameters, float32) on two cores, as measured: one sequence takes 55 to
60 ms for a token, 32 take 370 ms for a step; a prompt's token takes 1.6 ms.
"""
