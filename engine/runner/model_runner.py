"""Computes plans with a real model. Knows rows and blocks, not requests, tenants or reasons."""

import logging
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.step import PlannedRow, SamplingParams, StepPlan, StepResult
from engine.models.computation import computation
from engine.models.layers import StepInputs
from engine.models.loading import LoadedModel
from engine.runner.inputs import build_inputs, sampled_tokens
from engine.runner.kv_tensors import allocate_kv_tensors
from engine.runner.sampler import SampledRows, no_sampled_rows, sample_rows, sample_rows_apart
from kernels import native

logger = logging.getLogger(__name__)

NOT_FINITE = "the model's output for this sequence is not a number"


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A launched step: what it reads is laid out."""

    step_id: int
    sampling_rows: tuple[PlannedRow, ...]
    inputs: StepInputs | None
    """None for a step without rows."""

    sampled_tokens: Tensor  # [num_sampled] int64


class ModelRunner:
    """Owns the model's weights and the cache's memory, and computes one plan at a time."""

    def __init__(
        self, model: LoadedModel, *, num_blocks: int, block_size: int, num_threads: int | None = None
    ) -> None:
        """Allocates `num_blocks` cache blocks of `block_size` tokens each.

        `num_threads` is how many CPU threads this process computes with; None leaves PyTorch's choice.
        """
        self._num_threads = num_threads
        self._caches = allocate_kv_tensors(
            model.config,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=model.precision.cache,
            device=model.device,
        )
        self._computation = computation(model.network, self._caches)
        self._sampling_seconds = 0.0

    def launch(self, plan: StepPlan) -> InFlight:
        """Makes `plan` ready to be computed."""
        keys = self._caches[0].keys
        return InFlight(
            step_id=plan.step_id,
            sampling_rows=tuple(row for row in plan.rows if row.sampling is not None),
            inputs=build_inputs(plan.rows, keys) if plan.rows else None,
            sampled_tokens=sampled_tokens(plan.rows, keys.device),
        )

    def collect(self, in_flight: InFlight) -> StepResult:
        """Computes a launched step; native operators and GPUs work without the interpreter lock.

        What is wrong with one row is the error of its sequence alone.
        """
        sampled: dict[str, tuple[int, ...]] = {}
        rows = self._compute(in_flight)
        sequence_ids = [row.sequence_id for row in in_flight.sampling_rows]
        errors = {sequence_ids[index]: error for index, error in rows.errors.items()}
        token_ids, is_finite = rows.token_ids.tolist(), rows.is_finite.tolist()
        for sequence_id, token_id, is_valid in zip(sequence_ids, token_ids, is_finite, strict=True):
            if sequence_id in errors:
                continue
            if is_valid:
                sampled[sequence_id] = (token_id,)
            else:
                errors[sequence_id] = NOT_FINITE
        return StepResult(step_id=in_flight.step_id, sampled=sampled, errors=errors)

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent so far by operator, sampling among them, where the computation knows it."""
        return {**self._computation.seconds, "sampling": self._sampling_seconds}

    def warm_up(self) -> None:
        """Computes a small step before there is any sequence, so that the first real one is not the slow one.

        It writes into the first blocks, which nobody owns yet.
        """
        sampling = SamplingParams(temperature=1.0, top_p=0.9)
        num_tokens = min(8, self._caches[0].keys.shape[2])
        prompt = PlannedRow(
            sequence_id="warm-up", token_ids=(0,) * num_tokens, start=0, block_table=(0,), sampling=sampling
        )
        self.collect(self.launch(StepPlan(step_id=0, rows=(prompt,))))

    def _use_threads(self) -> None:
        # PyTorch keeps the number by thread, so it is said on whichever computes.
        if self._num_threads is not None and torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
        native.set_num_threads(torch.get_num_threads())

    @torch.inference_mode()
    def _compute(self, in_flight: InFlight) -> SampledRows:
        sampling_rows = in_flight.sampling_rows
        if in_flight.inputs is None:
            return no_sampled_rows()
        self._use_threads()
        logits = self._computation.logits(in_flight.inputs, in_flight.sampled_tokens)
        if not sampling_rows:
            return no_sampled_rows()
        begun = time.perf_counter()
        try:
            return sample_rows(logits, sampling_rows)
        except Exception:  # one row's parameters, most likely: they must not cost the others their tokens
            logger.exception("sampling a step failed; its rows are sampled one by one")
            return sample_rows_apart(logits, sampling_rows)
        finally:
            self._sampling_seconds += time.perf_counter() - begun
