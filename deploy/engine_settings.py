"""The settings of an engine's process: all but the store, which an engine does not know."""

from pathlib import Path

from pydantic import ConfigDict, Field

from deploy.configuration import DEFAULT_DATA_DIR
from engine.settings import EngineSection, EngineSettings, SchedulerSection, SloSection
from gateway.setting_sources import ProcessSettings, Secret, Section, load


class SecretsSection(Section):
    """Of `[secrets]`, what gateways must present, in hexadecimal digits."""

    model_config = ConfigDict(extra="ignore")

    engine_shared: Secret = Field(repr=False)


class EngineProcessSettings(ProcessSettings):
    """All that an engine's process is told."""

    data_dir: Path = DEFAULT_DATA_DIR
    engine: EngineSection = EngineSection()
    scheduler: SchedulerSection = SchedulerSection()
    slo: SloSection = SloSection()
    secrets: SecretsSection

    @property
    def of_engine(self) -> EngineSettings:
        """What the engine itself has to know of it."""
        return EngineSettings(
            engine=self.engine,
            scheduler=self.scheduler,
            slo=self.slo,
            shared_secret=self.secrets.engine_shared,
        )


def load_settings() -> EngineProcessSettings:
    """The settings of this process. Raises ConfigurationError."""
    return load(EngineProcessSettings)
