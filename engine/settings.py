"""The engine's settings as values that are checked. Where they come from is its starter's business."""

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.core.limits import LimitError, Limits
from engine.core.slo import SloTargets
from engine.errors import SettingsError

CPU_LIMITS = {  # a step of some 100 ms on two cores, where a GPU would take thousands of tokens
    "max_num_seqs": 64,
    "max_num_batched_tokens": 192,
    "max_num_prefill_tokens": 128,
    "prefill_chunk_size": 64,
}

# What a pair of a prompt's token and one that it attends to costs, in context tokens that decoding rows read.
# On a CPU as measured with the default model (0.7 and 1.7 us); on a GPU by its arithmetic: 1 and 50 ns for a
# model of 8 billion parameters, where decoding waits for memory and prompts do not.
PREFILL_PAIR_COST = {"cpu": 0.4, "cuda": 0.02}


class Section(BaseModel):
    """A section of the file: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Positive = Annotated[int, Field(ge=1)]


class EngineSection(Section):
    """`[engine]`: which model, where, on what."""

    model: str = "smollm2-135m-instruct"
    listen: str = "127.0.0.1:8090"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    kv_block_size: int = Field(default=32, ge=1, le=1024)
    kv_cache_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"
    num_threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    runner: Literal["model", "scripted"] = "model"
    scripted_step_ms: float = Field(default=5.0, ge=0)
    drain_seconds: float = Field(default=10.0, ge=0)


class SchedulerSection(Section):
    """`[scheduler]`: limits; what is not set depends on the device and the model."""

    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    max_num_prefill_tokens: Positive | None = None
    max_model_len: Positive | None = None
    max_output_len: Positive | None = None
    prefill_chunk_size: Positive | None = None
    long_context_threshold: Positive | None = None
    max_num_long_context_seqs: Positive | None = None
    kv_cache_utilization_limit: float | None = None
    waiting_timeout_ms: Positive | None = None
    offline_kv_utilization_limit: float | None = None
    offline_min_share: float | None = None

    def limits(self, *, device: str, context_length: int) -> Limits:
        """The limits in force on `device` for a model of `context_length` tokens; raises SettingsError."""
        values = CPU_LIMITS if device == "cpu" else {}
        chosen = {key: value for key, value in self.model_dump().items() if value is not None}
        merged = {"max_model_len": context_length, **values, **chosen}
        if merged["max_model_len"] > context_length:
            raise SettingsError(
                f"scheduler.max_model_len is {merged['max_model_len']}, but the model's context has "
                f"{context_length} tokens"
            )
        merged.setdefault("max_output_len", min(4096, merged["max_model_len"]))
        try:
            return Limits(**merged)
        except LimitError as error:
            raise SettingsError(f"scheduler: {error}") from error


class SloSection(Section):
    """`[slo]`: what interactive users were promised."""

    ttft_p95_ms: float = Field(default=1500, gt=0)
    itl_p95_ms: float = Field(default=120, gt=0)
    queue_wait_p95_ms: float = Field(default=500, gt=0)
    kv_cache_utilization_max: float = Field(default=0.88, gt=0, le=1)
    admission_reject_rate_max: float = Field(default=0.01, ge=0, le=1)

    def targets(self) -> SloTargets:
        """The promises as the core knows them."""
        return SloTargets(**{key.name: getattr(self, key.name) for key in fields(SloTargets)})


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """All that an engine is told; `shared_secret` is what gateways must present."""

    engine: EngineSection
    scheduler: SchedulerSection
    slo: SloSection
    shared_secret: str = field(repr=False)
