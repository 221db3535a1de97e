"""Tenants, keys and limits, made with the `sluice` command alone."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tests.benchmarks.gateway.gateway_process import sluice


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one tenant; None is unlimited."""

    concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None


def make_customer(name: str, limits: Limits, environment: Mapping[str, str]) -> str:
    """A tenant with these limits; returns a key of it."""
    sluice("tenants", "create", name, environment=environment)
    set_limits(name, limits, environment)
    return sluice("keys", "create", "--tenant", name, "--quiet", environment=environment)


def set_limits(tenant: str, limits: Limits, environment: Mapping[str, str]) -> None:
    """Through the command, one by one."""
    for kind, value in asdict(limits).items():
        if value is not None:
            sluice("limits", "set", kind, str(value), "--tenant", tenant, environment=environment)
