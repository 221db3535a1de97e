"""The engine's settings: one frozen value, read once from a TOML file and the environment.

`SLUICE_CONFIG` names the file; `SLUICE_<SECTION>__<KEY>` overrides a key. Wrong values fail by name.
"""

import os
from dataclasses import fields
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from engine.core.limits import LimitError, Limits
from engine.core.slo import SloTargets
from engine.errors import SettingsError

CPU_LIMITS = {  # a step of some 100 ms on two cores, where a GPU would take thousands of tokens
    "max_num_seqs": 64,
    "max_num_batched_tokens": 192,
    "max_num_prefill_tokens": 128,
    "prefill_chunk_size": 64,
}


class Section(BaseModel):
    """A section of the file: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineSection(Section):
    """`[engine]`: which model, where, on what."""

    model: str = "smollm2-135m-instruct"
    listen: str = "127.0.0.1:8090"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_block_size: int = Field(default=32, ge=1, le=1024)
    kv_cache_gib: float | Literal["auto"] = "auto"
    num_threads: int | Literal["auto"] = "auto"
    runner: Literal["model", "scripted"] = "model"
    scripted_step_ms: float = Field(default=5.0, ge=0)
    drain_seconds: float = Field(default=10.0, ge=0)


class SchedulerSection(Section):
    """`[scheduler]`: limits; what is not set depends on the device and the model."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_prefill_tokens: int | None = None
    max_model_len: int | None = None
    max_output_len: int | None = None
    prefill_chunk_size: int | None = None
    long_context_threshold: int | None = None
    max_num_long_context_seqs: int | None = None
    kv_cache_utilization_limit: float | None = None
    waiting_timeout_ms: int | None = None

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


class SecretsSection(BaseModel):
    """`[secrets]`: of it, what the engine needs."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    engine_shared: str = Field(min_length=16)


class EngineSettings(BaseSettings):
    """All sections that the engine reads; other processes' sections are left alone."""

    model_config = SettingsConfigDict(
        env_prefix="SLUICE_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

    data_dir: Path = Path("sluice-data")
    engine: EngineSection = EngineSection()
    scheduler: SchedulerSection = SchedulerSection()
    slo: SloSection = SloSection()
    secrets: SecretsSection

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment before the file."""
        file = TomlConfigSettingsSource(settings_cls, toml_file=os.environ.get("SLUICE_CONFIG"))
        return init_settings, env_settings, file


def load() -> EngineSettings:
    """The settings of this process; raises SettingsError with one line that names the key."""
    try:
        return EngineSettings()  # type: ignore[call-arg]  # its sources fill it
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"setting {key}: {first['msg']}") from error
