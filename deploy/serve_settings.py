"""The settings that `sluice serve` checks before it starts anything: all but the store and secrets."""

import os

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from admin_ui.settings import AdminSection
from engine.settings import EngineSection, SchedulerSection, SloSection
from gateway.settings import CONFIG_VARIABLE, ConfigurationError, GatewaySection, in_one_line


class ServeSettings(BaseSettings):
    """Every section of the file that has defaults. A wrong value anywhere stops the start at once."""

    model_config = SettingsConfigDict(
        env_prefix="SLUICE_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

    gateway: GatewaySection = GatewaySection()
    admin: AdminSection = AdminSection()
    engine: EngineSection = EngineSection()
    scheduler: SchedulerSection = SchedulerSection()
    slo: SloSection = SloSection()

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
        file = TomlConfigSettingsSource(settings_cls, toml_file=os.environ.get(CONFIG_VARIABLE))
        return init_settings, env_settings, file


def load() -> ServeSettings:
    """Raises ConfigurationError with one line that names what is wrong."""
    try:
        return ServeSettings()
    except ValidationError as error:
        raise ConfigurationError(in_one_line(error)) from error
    except SettingsError as error:
        raise ConfigurationError(f"{error}: {error.__cause__}") from error
