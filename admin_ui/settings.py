"""The admin UI's settings: one frozen object from the environment and one TOML file, wrong values refused.

Read as the gateway's are (`gateway/settings.py`), of which it shares `[gateway]` and the secrets it needs.
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from gateway.settings import CONFIG_VARIABLE, ConfigurationError, GatewaySection, Secret, in_one_line


def _web_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"an address begins with http:// or https:// and names a host, not '{url}'")
    return url.rstrip("/")


WebAddress = Annotated[str, AfterValidator(_web_address)]


class AdminSection(BaseModel):
    """`[admin]`: where the pages are served, and how others reach them.

    `public_url` is needed only behind a proxy that changes the Host header. `api_url` is the address of the
    API that the pages show in their examples.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8081
    public_url: WebAddress | None = None
    api_url: WebAddress = "http://127.0.0.1:8080"


class SecretsSection(BaseModel):
    """Of `[secrets]`, in hexadecimal digits: what keys are hashed with, and what engines ask for."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    key_pepper: Secret = Field(repr=False)
    engine_shared: Secret = Field(repr=False)


class AdminSettings(BaseSettings):
    """All that the admin UI is told."""

    model_config = SettingsConfigDict(
        env_prefix="SLUICE_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

    database_url: str = Field(repr=False)
    gateway: GatewaySection = GatewaySection()
    admin: AdminSection = AdminSection()
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


def load_settings() -> AdminSettings:
    """The settings of this process. Raises ConfigurationError."""
    config = os.environ.get(CONFIG_VARIABLE)
    if config and not Path(config).is_file():
        raise ConfigurationError(f"{CONFIG_VARIABLE} names {config}, which is not a file")
    try:
        return AdminSettings()  # type: ignore[call-arg]  # the sources give the values
    except ValidationError as error:
        raise ConfigurationError(in_one_line(error)) from error
    except SettingsError as error:
        raise ConfigurationError(f"{error}: {error.__cause__}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{config} is not valid TOML: {error}") from error
