"""A gateway's settings: one frozen object from the environment and one TOML file; wrong values fail at start.

A key comes from the variable `SLUICE_SECTION__KEY`, or else from the file that `SLUICE_CONFIG` names.
Sections of other processes are left alone; an unknown key in a section of ours is an error.
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

CONFIG_VARIABLE: Final = "SLUICE_CONFIG"


class ConfigurationError(Exception):
    """A setting is missing or wrong. The message is one line that names the key."""


def _engine_urls(value: Any) -> Any:
    return [url.strip() for url in value.split(",") if url.strip()] if isinstance(value, str) else value


def _web_socket_url(url: str) -> str:
    if not url.startswith(("ws://", "wss://")):
        raise ValueError(f"an engine's address begins with ws:// or wss://, not '{url}'")
    return url


def _hexadecimal(value: str) -> str:
    try:
        bytes.fromhex(value)
    except ValueError as error:
        raise ValueError("must be an even number of hexadecimal digits") from error
    return value


EngineUrl = Annotated[str, AfterValidator(_web_socket_url)]
Secret = Annotated[str, Field(min_length=32), AfterValidator(_hexadecimal)]
Seconds = Annotated[float, Field(gt=0)]


class GatewaySection(BaseModel):
    """`[gateway]`. `engines` may be a comma-separated list in the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engines: Annotated[tuple[EngineUrl, ...], NoDecode, BeforeValidator(_engine_urls)] = Field(
        default=("ws://127.0.0.1:8090",), min_length=1
    )
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    max_body_bytes: Annotated[int, Field(gt=0)] = 4 * 1024 * 1024
    max_queued_requests: Annotated[int, Field(gt=0)] = 4096
    request_timeout_seconds: Seconds = 600.0
    keepalive_seconds: Seconds = 15.0
    drain_seconds: Seconds = 20.0
    write_timeout_seconds: Seconds = 30.0
    database_pool_size: Annotated[int, Field(gt=0)] = 5


class SecretsSection(BaseModel):
    """`[secrets]`, in hexadecimal digits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key_pepper: Secret = Field(repr=False)
    cache_namespace: Secret = Field(repr=False)
    engine_shared: Secret = Field(repr=False)


class GatewaySettings(BaseSettings):
    """All that a gateway process is told."""

    model_config = SettingsConfigDict(
        env_prefix="SLUICE_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

    database_url: str = Field(repr=False)
    gateway: GatewaySection = GatewaySection()
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
        """Arguments, then the environment, then the file."""
        file = TomlConfigSettingsSource(settings_cls, toml_file=os.environ.get(CONFIG_VARIABLE))
        return init_settings, env_settings, file


def load_settings() -> GatewaySettings:
    """The settings of this process. Raises ConfigurationError."""
    config = os.environ.get(CONFIG_VARIABLE)
    if config and not Path(config).is_file():
        raise ConfigurationError(f"{CONFIG_VARIABLE} names {config}, which is not a file")
    try:
        return GatewaySettings()  # type: ignore[call-arg]  # the sources give the values
    except ValidationError as error:
        raise ConfigurationError(in_one_line(error)) from error
    except SettingsError as error:
        raise ConfigurationError(f"{error}: {error.__cause__}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{config} is not valid TOML: {error}") from error


def in_one_line(error: ValidationError) -> str:
    """What is wrong with every wrong setting, by its name in the file and in the environment."""
    return "; ".join(_problem(problem) for problem in error.errors())


def _problem(problem: Any) -> str:
    parts = [str(part) for part in problem["loc"]]
    names = [part for part in parts if not part.isdigit()]
    message = problem["msg"].removeprefix("Value error, ")
    return f"{'.'.join(parts)} (SLUICE_{'__'.join(names).upper()}): {message}"
