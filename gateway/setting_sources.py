"""Where a process's settings come from, and how a wrong one is reported. Knows no setting.

A key comes from the variable `SLUICE_SECTION__KEY`, or else from the TOML file that `SLUICE_CONFIG` names.
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

CONFIG_VARIABLE: Final = "SLUICE_CONFIG"


class ConfigurationError(Exception):
    """A setting is missing or wrong. The message is one line that names the key."""


def _hexadecimal(value: str) -> str:
    try:
        bytes.fromhex(value)
    except ValueError as error:
        raise ValueError("must be an even number of hexadecimal digits") from error
    return value


Secret = Annotated[str, Field(min_length=32), AfterValidator(_hexadecimal)]
"""A key that processes share."""


class Section(BaseModel):
    """A section of the file: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProcessSettings(BaseSettings):
    """The sections that one process reads; those of others are left alone."""

    model_config = SettingsConfigDict(
        env_prefix="SLUICE_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

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


Loaded = TypeVar("Loaded", bound=ProcessSettings)


def load(settings: type[Loaded]) -> Loaded:
    """The settings of this process. Raises ConfigurationError."""
    config = os.environ.get(CONFIG_VARIABLE)
    if config and not Path(config).is_file():
        raise ConfigurationError(f"{CONFIG_VARIABLE} names {config}, which is not a file")
    try:
        return settings()
    except ValidationError as error:
        raise ConfigurationError("; ".join(map(_problem, error.errors()))) from error
    except SettingsError as error:
        raise ConfigurationError(f"{error}: {error.__cause__}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{config} is not valid TOML: {error}") from error


def _problem(problem: Any) -> str:
    """What is wrong with a setting, by its name in the file and in the environment."""
    if problem["loc"] == ("secrets",) and problem["type"] == "missing":
        return (
            "secrets are missing: set SLUICE_SECRETS__KEY_PEPPER, SLUICE_SECRETS__CACHE_NAMESPACE and "
            "SLUICE_SECRETS__ENGINE_SHARED, the same for every process (openssl rand -hex 32 makes one)"
        )
    parts = [str(part) for part in problem["loc"]]
    names = [part for part in parts if not part.isdigit()]
    message = problem["msg"].removeprefix("Value error, ")
    return f"{'.'.join(parts)} (SLUICE_{'__'.join(names).upper()}): {message}"
