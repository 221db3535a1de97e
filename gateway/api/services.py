"""What the routes need of the rest of the gateway, found in a request's scope; composed by `gateway.app`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gateway.api.management import Management
from gateway.api.readiness import Readiness
from gateway.db import Database
from gateway.filing import Filing
from gateway.generation import Generation
from gateway.keys.caller import Caller
from gateway.metrics import GatewayMetrics
from gateway.requests.catalogue import Catalogue
from gateway.settings import GatewaySection

STATE_KEY: Final = "services"


class Authenticator(Protocol):
    """Knows keys (`gateway.keys.service.KeyService`)."""

    async def authenticate(self, authorization: str | None) -> Caller:
        """Whose key this is. Raises InvalidApiKey or StoreUnavailable."""


@dataclass(frozen=True, kw_only=True)
class Services:
    """All that serves requests."""

    keys: Authenticator
    catalogue: Catalogue
    generation: Generation
    filing: Filing
    readiness: Readiness
    metrics: GatewayMetrics
    management: Management
    database: Database
    settings: GatewaySection


def services_of(scope: Mapping[str, Any]) -> Services:
    """The services that the application's start left in the scope."""
    services = scope["state"][STATE_KEY]
    assert isinstance(services, Services)
    return services
