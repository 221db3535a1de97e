"""Tenants, keys and limits, made with the `sluice` command alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.benchmarks.gateway.gateway_process import sluice


class NotYet(Exception):
    """This version of the `sluice` command cannot set such a limit; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one tenant; None is unlimited."""

    concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None


def make_customer(name: str, limits: Limits, environment: Mapping[str, str]) -> str:
    """A tenant with these limits; returns a key of it. Raises NotYet."""
    sluice("tenants", "create", name, environment=environment)
    set_limits(name, limits, environment)
    return sluice("keys", "create", "--tenant", name, "--quiet", environment=environment)


def set_limits(tenant: str, limits: Limits, environment: Mapping[str, str]) -> None:
    """The one place that knows how limits are set. Raises NotYet for those that no command sets.

    To be extended when `sluice limits set` is there: with it, all five go through that command, and limits of
    a project or a key, or of one request class, find their parameters here.
    """
    later = {
        "requests per minute": limits.requests_per_minute,
        "tokens per day": limits.tokens_per_day,
        "tokens per month": limits.tokens_per_month,
    }
    missing = [name for name, value in later.items() if value is not None]
    if missing:
        raise NotYet(f"no command sets {' or '.join(missing)} yet")
    known = {
        "--concurrent-requests": limits.concurrent_requests,
        "--tokens-per-minute": limits.tokens_per_minute,
    }
    options = [word for option, value in known.items() if value is not None for word in (option, str(value))]
    if options:
        sluice("tenants", "update", tenant, *options, environment=environment)
