"""A gateway's settings: one frozen object, wrong values of which fail at start.

Sections of other processes are left alone; an unknown key in a section of ours is an error.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from gateway.setting_sources import ProcessSettings, Secret, Section, load


def _engine_urls(value: Any) -> Any:
    return [url.strip() for url in value.split(",") if url.strip()] if isinstance(value, str) else value


def _web_socket_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError(f"an engine's address is ws://HOST:PORT or wss://HOST:PORT, not '{url}'")
    if parts.port == 0:  # asking for it raises ValueError, with a sentence, where it is no port at all
        raise ValueError(f"'{url}' names no port")
    return url


def check_database_url(url: str) -> str:
    """`url`, if it names a Postgres; raises ValueError, which does not show it: it may hold a password."""
    try:
        is_postgres = make_url(url).get_backend_name() in ("postgresql", "postgres")
    except (ArgumentError, ValueError):
        is_postgres = False
    if not is_postgres:
        raise ValueError("a database's address is postgresql://USER:PASSWORD@HOST:PORT/NAME")
    return url


EngineUrl = Annotated[str, AfterValidator(_web_socket_url)]
DatabaseUrl = Annotated[str, AfterValidator(check_database_url)]
Seconds = Annotated[float, Field(gt=0)]


class GatewaySection(Section):
    """`[gateway]`. `engines` may be a comma-separated list in the environment."""

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
    read_timeout_seconds: Seconds = 20.0
    write_timeout_seconds: Seconds = 30.0
    database_pool_size: Annotated[int, Field(gt=1)] = 6  # one of them holds the lock of the process's life
    journal_dir: Path | None = None
    """Where a worker writes down what the store does not have yet; None: a killed worker loses it."""
    usage_event_days: Annotated[int, Field(ge=1, le=36_500)] = 90
    batch_days: Annotated[int, Field(ge=1, le=36_500)] = 30  # batches are listed so long after their end
    max_open_batches: Annotated[int, Field(gt=0)] = 2_000
    """Of one tenant: the sweep looks at each every second, and a process validates about one a second."""
    usage_minute_days: Annotated[int, Field(ge=8, le=36_500)] = 30  # reports go back a week by the minute


class FilesSection(Section):
    """`[files]`: where tenants' files lie, and how much of them. With neither folder nor bucket: nowhere."""

    directory: Path | None = None
    s3_bucket: str | None = None  # wins over the folder; needs the extra `s3`
    s3_endpoint_url: str | None = None  # None: Amazon's
    s3_prefix: str = ""
    max_file_bytes: Annotated[int, Field(gt=0)] = 200 * 1024 * 1024
    max_lines: Annotated[int, Field(gt=0)] = 50_000  # of a batch's input
    max_tenant_bytes: Annotated[int, Field(ge=0)] = 10 * 1024**3
    """What a tenant may keep that has no limit of its own (`file_storage_bytes`)."""
    keep_days: Annotated[int, Field(ge=1, le=36_500)] = 30  # inputs and outputs, where nothing else is said
    max_uploads: Annotated[int, Field(ge=2)] = 32  # at once in a process; a tenant has at most half of them
    silence_seconds: Seconds = 20.0  # how long an upload may bring nothing
    upload_seconds: Seconds = 3_600.0

    @property
    def left_after(self) -> timedelta:
        """What is older is of no upload under way; blobs of a bucket are as old as theirs."""
        return timedelta(seconds=self.upload_seconds) + timedelta(hours=1)


class SecretsSection(Section):
    """`[secrets]`, in hexadecimal digits."""

    key_pepper: Secret = Field(repr=False)
    cache_namespace: Secret = Field(repr=False)
    engine_shared: Secret = Field(repr=False)


class GatewaySettings(ProcessSettings):
    """All that a gateway process is told."""

    database_url: DatabaseUrl = Field(repr=False)
    gateway: GatewaySection = GatewaySection()
    files: FilesSection = FilesSection()
    secrets: SecretsSection


def load_settings() -> GatewaySettings:
    """The settings of this process. Raises ConfigurationError."""
    return load(GatewaySettings)
