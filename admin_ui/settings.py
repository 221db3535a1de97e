"""The admin UI's settings: one frozen object, wrong values refused. `[gateway]` is the gateway's own."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field

from gateway.setting_sources import ProcessSettings, Secret, Section, load
from gateway.settings import DatabaseUrl, GatewaySection


def _web_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"an address begins with http:// or https:// and names a host, not '{url}'")
    return url.rstrip("/")


WebAddress = Annotated[str, AfterValidator(_web_address)]


class AdminSection(Section):
    """`[admin]`: where the pages are served, and how others reach them.

    `public_url` is needed only behind a proxy that changes the Host header. `api_url` is the address of the
    API that the pages show in their examples.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8081
    public_url: WebAddress | None = None
    api_url: WebAddress = "http://127.0.0.1:8080"


class SecretsSection(Section):
    """Of `[secrets]`, in hexadecimal digits: what keys are hashed with, and what engines ask for."""

    model_config = ConfigDict(extra="ignore")

    key_pepper: Secret = Field(repr=False)
    engine_shared: Secret = Field(repr=False)


class AdminSettings(ProcessSettings):
    """All that the admin UI is told."""

    database_url: DatabaseUrl = Field(repr=False)
    gateway: GatewaySection = GatewaySection()
    admin: AdminSection = AdminSection()
    secrets: SecretsSection


def load_settings() -> AdminSettings:
    """The settings of this process. Raises ConfigurationError."""
    return load(AdminSettings)
