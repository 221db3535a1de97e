"""The settings that `sluice serve` checks before it starts anything: all but the store and secrets."""

from admin_ui.settings import AdminSection
from engine.settings import EngineSection, SchedulerSection, SloSection
from gateway import setting_sources
from gateway.setting_sources import ProcessSettings
from gateway.settings import GatewaySection


class ServeSettings(ProcessSettings):
    """Every section of the file that has defaults. A wrong value anywhere stops the start at once."""

    gateway: GatewaySection = GatewaySection()
    admin: AdminSection = AdminSection()
    engine: EngineSection = EngineSection()
    scheduler: SchedulerSection = SchedulerSection()
    slo: SloSection = SloSection()


def load() -> ServeSettings:
    """Raises ConfigurationError with one line that names what is wrong."""
    return setting_sources.load(ServeSettings)
